// All that the NCCL executor asks of a GPU: calls of the CUDA runtime and of NCCL, and the launches
// of our own kernels. Tests put a double in its place. Handles are CUDA's and NCCL's own, without
// their headers.
//
// Every function is about the calling thread's current device and throws Error with the text of
// CUDA or NCCL; only what frees never throws. Functions that take a stream enqueue, and return at
// once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/copy.h"
#include "kernels/latency_rows.h"
#include "kernels/row_lists.h"
#include "kernels/weigh.h"
#include "src/base/error.h"

namespace moeccl {

// A stream cannot be used now because of a capture; nothing has been enqueued.
struct RefusedInCapture : Error {
  using Error::Error;
};

// How long other ranks are waited for; negative: for ever. check() is called now and then
// meanwhile, and may throw what ends the wait.
struct Patience {
  Patience(
      std::int64_t milliseconds, std::function<void()> look = [] {})
      : timeoutMs(milliseconds), check(std::move(look)) {}

  std::int64_t timeoutMs;
  std::function<void()> check;
};

class Gpu {
 public:
  using Stream = void*;              // a cudaStream_t; nullptr: the legacy default stream
  using Event = void*;               // a cudaEvent_t
  using Comm = void*;                // an ncclComm_t
  using Id = std::array<char, 128>;  // an ncclUniqueId
  // A communicator that is joined, or made for parts, does not block, so that waiting for other
  // ranks can end. One for messages blocks where revokes(): its groups take no thread each.
  enum class Purpose { parts, messages };

  virtual ~Gpu() = default;

  // "NCCL 2.28.9".
  virtual std::string name() const = 0;
  // "NVIDIA H100 80GB HBM3".
  virtual std::string model(int device) = 0;

  virtual int device() = 0;
  virtual void setDevice(int device) = 0;
  // May be called whatever streams are being captured.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  // Memory of the host that toDevice and toHost do not wait for.
  virtual std::byte* allocatePinned(std::size_t bytes) = 0;
  virtual void freePinned(std::byte* memory) noexcept = 0;

  // Memory from which NCCL can send, and into which it can receive, without copies of its own once
  // it is registered. If this NCCL registers none, it is as allocate() gives it.
  virtual std::byte* allocateForMessages(std::size_t bytes) = 0;
  virtual void freeForMessages(std::byte* memory) noexcept = 0;
  // Registers such memory with `comm`; nullptr: NCCL does not take it, and copies. What is
  // registered is deregistered before memory or communicator are freed, but for an abort.
  virtual void* registerWith(Comm comm, std::byte* memory, std::size_t bytes) noexcept = 0;
  virtual void deregister(Comm comm, void* registration) noexcept = 0;

  // A stream that does not wait for the legacy default stream; `urgent`: of the highest priority.
  virtual Stream newStream(bool urgent) = 0;
  virtual void deleteStream(Stream stream) noexcept = 0;
  virtual Event newEvent() = 0;
  virtual void deleteEvent(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;
  // Whether what the event stands for is complete; never waits.
  virtual bool complete(Event event) = 0;
  // Names the capture that a stream is part of; 0: none. Throws RefusedInCapture where its capture
  // has failed, and for the legacy default stream while a stream that waits for it is being
  // captured.
  virtual std::uint64_t capture(Stream stream) = 0;
  // `stream` is being captured: the graph and all that is made of it hold `what` until they are
  // destroyed.
  virtual void keepInGraph(Stream stream, std::shared_ptr<const void> what) = 0;

  // Between a host's memory and the device's; the host's must stay until the stream has come so
  // far. Where it is not pinned either may wait for that.
  virtual void toDevice(std::byte* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void toHost(void* to, const std::byte* from, std::size_t bytes, Stream stream) = 0;
  // kernels/copy.h and kernels/reduce.h have the contracts.
  virtual void copyBlocks(std::span<const BlockCopy> copies, Stream stream) = 0;
  virtual void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
                      const std::byte* const* sources, std::size_t stride, std::size_t count,
                      std::size_t bytes, Stream stream) = 0;
  virtual void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes,
                      std::int64_t divisor, Stream stream) = 0;
  // kernels/row_lists.h and kernels/weigh.h have the contracts of these.
  virtual void copyRows(const RowMatrices& matrices, const RowCopies& copies, Stream stream) = 0;
  virtual void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
                       const RowWeights& weights, Stream stream) = 0;
  virtual void weighGradients(const WeighedRows& rows, float* ofWeights, Stream stream) = 0;
  virtual void clear(std::byte* to, std::size_t bytes, Stream stream) = 0;
  // kernels/latency_rows.h has the contract.
  virtual void runLatency(LatencyStep step, const LatencyRows& rows, Stream stream) = 0;
  // kernels/quantise.h has the contracts.
  virtual void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
                        std::size_t rowCount, std::size_t elements, std::byte* quantised,
                        Stream stream) = 0;
  virtual void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                          std::size_t rowCount, std::size_t elements, std::byte* rows,
                          Stream stream) = 0;

  virtual Id newId() = 0;
  // Both are collective, and throw Timeout where patience ends. The first makes one for parts.
  virtual Comm join(const Id& id, int ranks, int rank, const Patience& patience) = 0;
  // Makes a communicator of all ranks of `comm` with this color, ordered by `key`; color -1: of
  // none, nullptr. If `comm` blocks, which only a user's does, there is no timeout.
  virtual Comm split(Comm comm, int color, int key, Purpose purpose, const Patience& patience) = 0;
  // Waits until `comm`, which need not block, is ready for more. Throws as split() does.
  virtual void settle(Comm comm, const Patience& patience) = 0;
  // Waits for the other ranks where NCCL does, and for the end of all graphs that use it; what was
  // enqueued is complete.
  virtual void destroy(Comm comm) noexcept = 0;
  // Ends what is enqueued too, then waits for the graphs. All of a device that may have work, at
  // once: NCCL frees the memory of one only when the kernels of the others have ended. No other
  // thread is in a call about any of them: NCCL frees what that call uses.
  virtual void abort(std::span<const Comm> comms) noexcept = 0;
  // Whether this NCCL has ncclCommRevoke (2.28.7).
  virtual bool revokes() const = 0;
  // Ends what is enqueued, and calls of other threads that block, and frees nothing; only abort()
  // takes the communicators afterwards. Does nothing unless revokes().
  virtual void revoke(std::span<const Comm> comms) noexcept = 0;
  virtual int ranks(Comm comm) = 0;
  virtual int rank(Comm comm) = 0;
  virtual int device(Comm comm) = 0;
  // The error that has befallen `comm` since its last call, or success; *text says more.
  virtual moecclResult_t asyncError(Comm comm, std::string* text) = 0;

  // Sends and receives of `comm` between the two make one launch for each stream. At their first
  // message two ranks are connected, and groupEnd() waits for the other. If `comm` does not block,
  // it waits for as long as patience has; else until the other comes or the communicator is
  // revoked.
  virtual void groupStart() = 0;
  virtual void groupEnd(Comm comm, const Patience& patience) = 0;
  virtual void send(const std::byte* from, std::size_t bytes, int peer, Comm comm,
                    Stream stream) = 0;
  virtual void recv(std::byte* to, std::size_t bytes, int peer, Comm comm, Stream stream) = 0;

  // NCCL's own collectives, of `count` elements in a block; buffers as moecclAllToAll and its
  // relatives have them. They connect ranks, and wait, as groupEnd() does.
  enum class Native { allToAll, allGather, reduceScatter, allReduce };
  // Whether this NCCL has it.
  virtual bool has(Native what) const = 0;
  virtual void run(Native what, const std::byte* from, std::byte* to, std::size_t count,
                   moecclDataType_t datatype, moecclRedOp_t op, Comm comm, Stream stream,
                   const Patience& patience) = 0;
};

// CUDA and NCCL of this process, opened at the first call. Throws Error: moecclUnhandledCudaError
// without a usable driver or device, moecclSystemError without an NCCL that is new enough,
// moecclInvalidUsage when built without CUDA.
std::shared_ptr<Gpu> openGpu();
// Whether NVLink joins GPUs of this model in the machines that they are usually in.
bool hasNvlink(std::string_view model);
// Replaces what openGpu() returns from now on; nullptr: by the real ones. For tests.
void replaceGpu(std::shared_ptr<Gpu> (*open)());

// Makes a device the thread's current one for a while.
class OnDevice {
 public:
  OnDevice(Gpu& gpu, int device) : gpu_(gpu), before_(gpu.device()) {
    if (before_ == device) return;
    gpu.setDevice(device);
    changed_ = true;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (!changed_) return;
    try {
      gpu_.setDevice(before_);
    } catch (...) {  // it was current before
    }
  }

 private:
  Gpu& gpu_;
  const int before_;
  bool changed_ = false;
};

}  // namespace moeccl

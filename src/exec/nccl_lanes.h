// What a rank's GPU communicator is made of: an NCCL communicator for every lane, streams for the
// lanes that cannot be the caller's, events, and memory for scratch and packed messages.
//
// Calls follow each other: whatever streams they are on, each waits on the GPU for the one before,
// as operations of one NCCL communicator do. So they share all of this. A CUDA graph, however, is
// only ordered against what it was captured with; the memory that it uses stays until the end.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "algorithms/plan.h"
#include "src/exec/gpu.h"
#include "src/exec/row_memory.h"

namespace moeccl {

class NcclLanes {
 public:
  // What a call needs of them.
  struct Needs {
    int lanes = 1;
    int events = 0;
    std::size_t arenaBytes = 0;
    std::size_t hostBytes = 0;  // not in graphs
  };

  // Collective. Takes over `root`, which is made for parts, also where it throws Error. registers:
  // NCCL may send from its memory and receive into it without copies, where it can.
  NcclLanes(std::shared_ptr<Gpu> gpu, Gpu::Comm root, Patience patience, bool registers);
  // Aborts what neither destroy() nor abort() has ended.
  ~NcclLanes();
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  Gpu& gpu() const { return *gpu_; }
  const std::shared_ptr<Gpu>& sharedGpu() const { return gpu_; }
  int device() const { return device_; }
  // Holds for whatever waits from now on.
  void setPatience(Patience patience);
  const Patience& patience() const { return patience_; }
  // The timeout of the calls from now on.
  void setTimeout(std::int64_t milliseconds) { patience_.timeoutMs = milliseconds; }

  // Orders a call on `stream` behind the one before, and gets what it needs; lanes that are missing
  // are made by all ranks together. Throws Error; RefusedInCapture where something is missing and
  // the stream is being captured.
  void begin(Gpu::Stream stream, const Needs& needs);
  // The call is enqueued, and `stream` has waited for all of it.
  void end(Gpu::Stream stream);

  // Whether the call that has begun is being captured.
  bool isCapturing() const { return capturing_; }
  // For lists that calls bring along.
  const std::shared_ptr<RowMemory>& rowMemory() const { return rowMemory_; }

  // Collective: waits, without the GPU, until all ranks have come to it. NCCL connects ranks at
  // their first messages, and waits there for ever for one that never comes. Throws Timeout.
  void meet();

  // One of NCCL's own collectives, on lane 0. Throws as LaneGroup::end() does.
  void run(Gpu::Native what, const std::byte* from, std::byte* to, std::size_t count,
           moecclDataType_t datatype, moecclRedOp_t op, Gpu::Stream stream);

  // The communicator that others are split from; it never has work.
  Gpu::Comm root() const { return root_; }
  int lanes() const;
  // Throws Error once interrupted.
  Gpu::Comm comm(int lane) const;
  Gpu::Stream stream(int lane, bool urgent);
  Gpu::Event event(int index) const { return events_[static_cast<std::size_t>(index)]; }
  std::byte* arena() const { return arena_; }
  // Pinned memory of the host.
  std::byte* host() const { return host_.empty() ? nullptr : host_.back(); }

  // Whether all calls are complete, but for those of graphs. Any thread may ask; before the first
  // call they are.
  bool isComplete() const { return gpu_->complete(last_); }
  // Waits until all calls are complete, but for those of graphs. Throws Error: NCCL's, once it has
  // one, or Timeout; `what` says who waits.
  void await(const std::string& what);
  // The first error of any lane.
  moecclResult_t asyncError(std::string* text);
  // How many captures have graphs that still live; NCCL ends no communicator before they have
  // ended.
  long graphs() const { return graphs_.use_count() - 1; }
  // The lanes are of no use afterwards.
  void destroy() noexcept;
  // Ends what is under way; no other thread is in a call of these lanes. NCCL frees memory only
  // when graphs have ended, and kernels of other communicators that may be stuck too: a thread
  // waits for that, and the caller `limit` at most.
  static void abort(std::unique_ptr<NcclLanes> lanes, std::chrono::milliseconds limit) noexcept;
  // The same while another thread is in a call of NCCL that does not return, such as the first
  // between two ranks of which one is dead: that call throws, as do others that follow. NCCL aborts
  // nothing while a thread is in a call, so a thread waits until all have returned.
  void interrupt() noexcept;

 private:
  friend class LaneGroup;
  // While it lives, its thread may be in calls of NCCL about the lanes, and none is aborted. Throws
  // Error once interrupted.
  class Inside {
   public:
    explicit Inside(const NcclLanes& lanes);
    // The same where commsMutex_ is held, and the lanes are whole.
    Inside(const NcclLanes& lanes, const std::lock_guard<std::mutex>&);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    const NcclLanes& lanes_;
  };
  // Notes that a lane has had a message to, or from, a peer; returns whether it is the first.
  bool isFirst(int lane, int peer, bool isSend);
  // Makes a call of NCCL that connects ranks, `whom`, and waits until they come. What ends patience
  // interrupts all lanes, and is thrown in place of what the call says then.
  void connect(const std::string& whom, const std::function<void()>& call);
  // The same for a call that blocks: another thread looks meanwhile.
  void watch(const std::function<void()>& call, const std::function<Error()>& timeout);
  void requireForCapture(const Needs& needs) const;
  void grow(const Needs& needs);
  void growArena(std::size_t bytes);
  std::byte* allocateArena(std::size_t bytes);
  void freeArena(std::byte* arena) noexcept;
  // Registers the arena in use with `comm`.
  void registerWith(Gpu::Comm comm);
  // Ends the registrations of an arena; nullptr: of all arenas.
  void deregister(const std::byte* arena) noexcept;
  void abortAll() noexcept;
  void abortWhenLeft() noexcept;
  // Throws Error once interrupted; commsMutex_ is held.
  void requireWhole() const;
  // For a thread of our own. None goes back to the device that it had before: that is 0 where
  // nobody has set any, and each rank would have a context there.
  void useDevice() noexcept;
  void addLane();

  const std::shared_ptr<Gpu> gpu_;
  Gpu::Comm root_;  // nullptr once destroyed or aborted
  mutable std::mutex commsMutex_;
  std::vector<Gpu::Comm> comms_;              // by lane
  std::vector<std::vector<bool>> connected_;  // by lane, 2 * peer + isSend
  std::array<std::uint64_t, 4> sizesRun_{};   // by Gpu::Native: bits of counts
  bool interrupted_ = false;
  mutable int inside_ = 0;  // threads
  mutable std::condition_variable left_;
  std::thread interrupter_;
  Patience patience_{-1};
  const bool registers_;
  int device_ = 0;
  struct LaneStreams {
    Gpu::Stream usual = nullptr, urgent = nullptr;
  };
  std::vector<LaneStreams> streams_{kMaxLanes};
  std::vector<Gpu::Event> events_;
  std::byte* arena_ = nullptr;
  std::size_t arenaBytes_ = 0;
  struct Registration {
    Gpu::Comm comm;
    const std::byte* arena;
    void* handle;
  };
  std::vector<Registration> registrations_;
  bool inGraphs_ = false;             // a graph uses arena_
  std::vector<std::byte*> outgrown_;  // arenas that graphs use
  const std::shared_ptr<RowMemory> rowMemory_ = std::make_shared<RowMemory>(gpu_);
  // The last is in use; a call that was given up may still use others.
  std::vector<std::byte*> host_;
  std::size_t hostBytes_ = 0;  // of the last
  // The end of the last call that was not captured, and of the last in the capture of this number.
  Gpu::Event last_ = nullptr, lastCaptured_ = nullptr;
  bool called_ = false;
  std::uint64_t capture_ = 0;
  std::shared_ptr<const char> graphs_ = std::make_shared<const char>();  // graphs hold it too
  bool capturing_ = false;                                               // the call at hand
};

// Sends and receives of a lane that are one launch. It is closed whatever happens in it: all that
// its thread asked of NCCL later would be part of it.
class LaneGroup {
 public:
  LaneGroup(NcclLanes& lanes, int lane, Gpu::Stream stream);
  LaneGroup(const LaneGroup&) = delete;
  LaneGroup& operator=(const LaneGroup&) = delete;
  ~LaneGroup();

  void send(const std::byte* from, std::size_t bytes, int peer);
  void recv(std::byte* to, std::size_t bytes, int peer);
  // Where messages are the first of two ranks on the lane, NCCL connects these, and waits for the
  // other. Throws Error: Timeout where it does not come.
  void end();

 private:
  NcclLanes& lanes_;
  const NcclLanes::Inside inside_;
  const int lane_;
  const Gpu::Comm comm_;
  const Gpu::Stream stream_;
  std::vector<int> strangers_;
  bool open_ = true;
};

}  // namespace moeccl

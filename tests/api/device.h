// What tests of GPU communicators do beside calling moeccl: memory, streams, graphs, and
// communicators of their own of NCCL's. On a GPU that is CUDA and NCCL
// (tests/gpu/ranks/cuda_device.cc), elsewhere a double. Everything throws what goes wrong.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "moeccl/nccl.h"

namespace moeccl::test {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual unsigned char* allocate(std::size_t bytes) = 0;
  virtual void free(unsigned char* memory) noexcept = 0;
  // Both have copied everything when they return.
  virtual void put(unsigned char* to, const void* from, std::size_t bytes) = 0;
  virtual void get(void* to, const unsigned char* from, std::size_t bytes) = 0;
  // Waits until the stream's work is complete.
  virtual void synchronize(moecclStream_t stream) = 0;
};

class Device : public DeviceMemory {
 public:
  virtual moecclStream_t newStream() = 0;
  virtual void deleteStream(moecclStream_t stream) noexcept = 0;

  // What `work` enqueues on the stream takes there.
  virtual double milliseconds(moecclStream_t stream, const std::function<void()>& work) = 0;

  using Graph = std::shared_ptr<void>;
  virtual void beginCapture(moecclStream_t stream) = 0;
  virtual Graph endCapture(moecclStream_t stream) = 0;
  virtual void replay(const Graph& graph, moecclStream_t stream) = 0;

  // A user's NCCL communicator of the ranks of `comm`. Collective.
  virtual ncclComm* join(moecclComm_t comm) = 0;
  virtual void leave(ncclComm* comm) = 0;
};

}  // namespace moeccl::test

#include "src/comm/gpu_oob.h"

namespace moeccl {
namespace {

// Memory of a device, with an owner.
class DeviceMemory {
 public:
  DeviceMemory(Gpu& gpu, std::size_t bytes) : gpu_(gpu), data_(gpu.allocate(bytes)) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { gpu_.free(data_); }
  std::byte* data() const { return data_; }

 private:
  Gpu& gpu_;
  std::byte* const data_;
};

}  // namespace

GpuOob::GpuOob(NcclLanes& lanes)
    : lanes_(lanes),
      rank_(lanes.gpu().rank(lanes.comm(0))),
      ranks_(lanes.gpu().ranks(lanes.comm(0))) {}

void GpuOob::allgather(const void* send, void* recv, std::size_t bytes) {
  if (bytes == 0) return;
  Gpu& gpu = lanes_.gpu();
  const OnDevice here(gpu, lanes_.device());
  const Gpu::Stream stream = lanes_.stream(0, false);
  const DeviceMemory all(gpu, bytes * static_cast<std::size_t>(ranks_));
  const auto of = [&](int rank) { return all.data() + bytes * static_cast<std::size_t>(rank); };
  lanes_.begin(stream, {});
  gpu.toDevice(of(rank_), send, bytes, stream);
  if (ranks_ > 1) {
    gpu.groupStart();
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      gpu.send(of(rank_), bytes, peer, lanes_.comm(0), stream);
      gpu.recv(of(peer), bytes, peer, lanes_.comm(0), stream);
    }
    gpu.groupEnd();
  }
  gpu.toHost(recv, all.data(), bytes * static_cast<std::size_t>(ranks_), stream);
  lanes_.end(stream);
  lanes_.await("what the ranks have to agree on");
}

}  // namespace moeccl

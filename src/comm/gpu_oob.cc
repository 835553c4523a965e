// All-gathers in one group of sends and receives on the first lane.
#include "src/comm/gpu_oob.h"

#include <cstring>

namespace moeccl {

GpuOob::GpuOob(NcclLanes& lanes)
    : lanes_(lanes),
      rank_(lanes.gpu().rank(lanes.comm(0))),
      ranks_(lanes.gpu().ranks(lanes.comm(0))) {}

void GpuOob::allgather(const void* send, void* recv, std::size_t bytes) {
  if (bytes == 0) return;
  Gpu& gpu = lanes_.gpu();
  const OnDevice here(gpu, lanes_.device());
  const Gpu::Stream stream = lanes_.stream(0, false);
  const std::size_t wanted = bytes * static_cast<std::size_t>(ranks_);
  // The lanes' memory, which stays with what is under way where waiting is given up.
  lanes_.begin(stream, {.arenaBytes = wanted, .hostBytes = wanted});
  std::byte* const host = lanes_.host();
  const auto of = [&](int rank) { return lanes_.arena() + bytes * static_cast<std::size_t>(rank); };
  std::memcpy(host, send, bytes);
  gpu.toDevice(of(rank_), host, bytes, stream);
  if (ranks_ > 1) {
    LaneGroup group(lanes_, 0, stream);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      group.send(of(rank_), bytes, peer);
      group.recv(of(peer), bytes, peer);
    }
    group.end();
  }
  gpu.toHost(host, of(0), wanted, stream);
  lanes_.end(stream);
  lanes_.await("what the ranks have to agree on");
  std::memcpy(recv, host, wanted);
}

}  // namespace moeccl

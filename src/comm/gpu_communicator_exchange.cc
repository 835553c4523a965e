// What a communicator on GPUs does for the host: what ranks tell each other goes through the memory
// of their GPUs.
#include <algorithm>
#include <cstring>

#include "src/base/error.h"
#include "src/comm/gpu_communicator.h"
#include "src/comm/gpu_oob.h"

namespace moeccl {

void GpuCommunicator::allgather(const void* send, void* recv, std::size_t bytes) {
  const auto what = [this] { return "rank " + std::to_string(rank_); };
  onLanes(what, [&](NcclLanes& lanes) { GpuOob(lanes).allgather(send, recv, bytes); });
}

void GpuCommunicator::exchange(const std::shared_ptr<const PlanName>& name,
                               const std::vector<RankBytes>& sends,
                               std::vector<RankBytes>& receives) {
  const auto crosses = [&](const RankBytes& part) {
    return part.rank != rank_ && !part.bytes.empty();
  };
  std::size_t out = 0, in = 0;
  for (const RankBytes& part : sends) out += crosses(part) ? part.bytes.size() : 0;
  for (const RankBytes& part : receives) in += crosses(part) ? part.bytes.size() : 0;
  if (out + in == 0) return;
  const auto what = [&] { return onRank(name->text); };
  onLanes(what, [&](NcclLanes& lanes) {
    const Gpu::Stream stream = lanes.stream(0, false);
    lanes.begin(stream, {.arenaBytes = out + in, .hostBytes = out + in});
    std::byte *host = lanes.host(), *device = lanes.arena();
    for (const RankBytes& part : sends)
      if (crosses(part)) host = std::ranges::copy(part.bytes, host).out;
    if (out > 0) gpu_->toDevice(device, lanes.host(), out, stream);
    LaneGroup group(lanes, 0, stream);
    for (const RankBytes& part : sends)
      if (crosses(part)) {
        group.send(device, part.bytes.size(), part.rank);
        device += part.bytes.size();
      }
    for (const RankBytes& part : receives)
      if (crosses(part)) {
        group.recv(device, part.bytes.size(), part.rank);
        device += part.bytes.size();
      }
    group.end();
    if (in > 0) gpu_->toHost(host, lanes.arena() + out, in, stream);
    lanes.end(stream);
    lanes.await(name->text);
    for (RankBytes& part : receives)
      if (crosses(part)) {
        std::memcpy(part.bytes.data(), host, part.bytes.size());
        host += part.bytes.size();
      }
  });
}

void GpuCommunicator::read(std::span<const Reading> parts, void* stream) {
  std::size_t bytes = 0;
  for (const Reading& part : parts) bytes += part.bytes;
  const auto what = [this] { return onRank("a copy to the host"); };
  onLanes(what, [&](NcclLanes& lanes) {
    if (gpu_->capture(stream) != 0)
      throw RefusedInCapture(moecclInvalidUsage,
                             "the stream is being captured, and the host must read now what it "
                             "will have; call this outside of captures");
    if (bytes == 0) return;
    lanes.begin(stream, {.hostBytes = bytes});
    std::byte* host = lanes.host();
    for (const Reading& part : parts) {
      if (part.bytes == 0) continue;
      gpu_->toHost(host, static_cast<const std::byte*>(part.from), part.bytes, stream);
      host += part.bytes;
    }
    lanes.end(stream);
    lanes.await("what the host has to read");
    host = lanes.host();
    for (const Reading& part : parts) {
      if (part.bytes == 0) continue;
      std::memcpy(part.to, host, part.bytes);
      host += part.bytes;
    }
  });
}

}  // namespace moeccl

// Exchanges of host memory, each by a plan of its own, and reads of host buffers.
#include <cstring>
#include <utility>

#include "src/comm/host_communicator.h"

namespace moeccl {
namespace {

// One buffer, and where each rank's part of it is.
struct Parts {
  explicit Parts(int ranks) : where(static_cast<std::size_t>(ranks), Extent{0, 0}) {}

  void add(const RankBytes& part) {
    where[static_cast<std::size_t>(part.rank)] = {bytes, part.bytes.size()};
    bytes += part.bytes.size();
  }

  std::vector<Extent> where;
  std::size_t bytes = 0;
};

}  // namespace

void HostCommunicator::exchange(const std::shared_ptr<const PlanName>& name,
                                const std::vector<RankBytes>& sends,
                                std::vector<RankBytes>& receives) {
  const auto crosses = [&](const RankBytes& part) {
    return part.rank != rank_ && !part.bytes.empty();
  };
  PlanBuilder plan;
  Parts out(ranks()), in(ranks());
  for (const RankBytes& part : sends)
    if (crosses(part)) {
      plan.send({}, part.rank, input(part.rank));
      out.add(part);
    }
  for (const RankBytes& part : receives)
    if (crosses(part)) {
      plan.recv({}, part.rank, output(part.rank));
      in.add(part);
    }
  struct Buffers {
    std::vector<std::byte> out, in;
  };
  const auto buffers = std::make_shared<Buffers>();
  buffers->out.resize(out.bytes);
  buffers->in.resize(in.bytes);
  for (const RankBytes& part : sends)
    if (crosses(part))
      std::memcpy(buffers->out.data() + out.where[static_cast<std::size_t>(part.rank)].offset,
                  part.bytes.data(), part.bytes.size());
  RowsCall call{{buffers->out.data(), buffers->in.data()}};
  call.inputTable = out.where;
  call.outputTable = in.where;
  call.plan = ownPlan(name, plan.build(), nullptr);
  call.keep = buffers;
  launch({std::move(call)}, nullptr);
  for (RankBytes& part : receives)
    if (crosses(part))
      std::memcpy(part.bytes.data(),
                  buffers->in.data() + in.where[static_cast<std::size_t>(part.rank)].offset,
                  part.bytes.size());
}

void HostCommunicator::read(std::span<const Reading> parts, void* stream) {
  if (stream != nullptr) static_cast<CallQueue*>(stream)->synchronize();
  for (const Reading& part : parts)
    if (part.bytes > 0) std::memcpy(part.to, part.from, part.bytes);
}

void HostCommunicator::enqueue(const std::shared_ptr<const PlanName>& name, void*, std::size_t,
                               const std::function<void(NcclLanes& lanes)>&) {
  throw Error(moecclInternalError, name->text + " is meant for GPUs");
}

}  // namespace moeccl

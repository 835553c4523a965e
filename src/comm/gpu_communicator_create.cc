// How GPU communicators come into being: over a launcher's all-gather, out of an NCCL communicator
// of the caller's, or out of another GPU communicator.
#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/agreement.h"
#include "src/comm/gpu_communicator.h"
#include "src/comm/gpu_oob.h"
#include "src/comm/introduction.h"
#include "src/comm/shrink.h"

namespace moeccl {
namespace {

void logJoined(const Oob& oob, const Settings& settings, Gpu& gpu, const Introduction& all) {
  const Topology& topology = all.topology;
  const LogSource who{oob.rank(), oob.ranks()};
  log(LogLevel::info, who,
      "joined over %s: %d ranks on %d nodes, this is local rank %d of node %d (%s), on device %d",
      gpu.name().c_str(), oob.ranks(), topology.nodes(), topology.localOf(oob.rank()),
      topology.nodeOf(oob.rank()), all.hosts[static_cast<std::size_t>(oob.rank())].name,
      gpu.device());
  if (!settings.trace.empty())
    log(LogLevel::warn, who,
        "MOECCL_TRACE: calls on GPUs are not recorded; Nsight Systems shows their kernels");
}

// The NCCL communicator of all ranks of `oob`.
Gpu::Comm joinAll(Oob& oob, Gpu& gpu, const Patience& patience) {
  Gpu::Id id{};
  agreeAfter(oob, [&] {
    if (oob.rank() == 0) id = gpu.newId();
  });
  id = exchangeValue(oob, id)[0];
  Gpu::Comm comm = nullptr;
  agreeAfter(oob, [&] { comm = gpu.join(id, oob.ranks(), oob.rank(), patience); });
  return comm;
}

// The same on all ranks that take part in a split of communicator `parent`.
std::uint32_t numberOf(std::uint32_t parent, std::uint32_t split, int color) {
  return static_cast<std::uint32_t>(mixed(mixed(parent, split), static_cast<std::uint32_t>(color)));
}

}  // namespace

Patience GpuCommunicator::patienceOf(const Place& place, std::int64_t timeoutMs) {
  return {timeoutMs, [job = place.job, members = place.members] { job->requireAlive(members); }};
}

std::unique_ptr<Communicator> GpuCommunicator::make(
    Oob& oob, const Settings& settings, Gpu& gpu,
    const std::function<std::unique_ptr<NcclLanes>(const Patience&)>& makeLanes) {
  Introduction all = introduce(oob, settings);
  const std::vector<char> joined = exchangeValue(oob, char{hasNvlink(gpu.model(gpu.device()))});
  Place place{nullptr, std::vector<int>(all.hosts.size()), 0,
              std::ranges::all_of(joined, [](char one) { return one != 0; })};
  std::iota(place.members.begin(), place.members.end(), 0);
  agreeAfter(oob, [&] { place.job = std::make_shared<GpuJob>(std::move(all.watch)); });
  const Patience forLife = patienceOf(place, settings.timeoutMs);
  std::unique_ptr<NcclLanes> lanes = makeLanes({settings.timeoutMs, [&] {
                                                  forLife.check();
                                                  oob.check();
                                                }});
  lanes->setPatience(forLife);
  logJoined(oob, settings, gpu, all);
  return std::unique_ptr<Communicator>(new GpuCommunicator(
      std::move(lanes), oob.rank(), std::move(all.topology), settings, std::move(place)));
}

std::unique_ptr<Communicator> GpuCommunicator::create(Oob& oob, const Settings& settings) {
  requireAgreement(oob, settings);
  std::shared_ptr<Gpu> gpu;
  agreeAfter(oob, [&] { gpu = openGpu(); });
  return make(oob, settings, *gpu, [&](const Patience& patience) {
    return std::make_unique<NcclLanes>(gpu, joinAll(oob, *gpu, patience), patience,
                                       settings.registers);
  });
}

std::unique_ptr<Communicator> GpuCommunicator::adopt(Gpu::Comm theirs, const Settings& settings) {
  const std::shared_ptr<Gpu> gpu = openGpu();
  gpu->settle(theirs, settings.timeoutMs);
  const int device = gpu->device(theirs), current = gpu->device();
  const OnDevice here(*gpu, device);
  auto lanes = std::make_unique<NcclLanes>(
      gpu, gpu->split(theirs, 0, gpu->rank(theirs), Gpu::Purpose::parts, settings.timeoutMs),
      settings.timeoutMs, settings.registers);
  GpuOob oob(*lanes);
  // The others have come to the split, so this is told only now.
  agreeAfter(oob, [&] {
    if (device != current)
      throw Error(moecclInvalidUsage,
                  stringf("ncclComm is of device %d, and the current device is %d; call "
                          "cudaSetDevice(%d) first",
                          device, current, device));
  });
  requireAgreement(oob, settings);
  return make(oob, settings, *gpu, [&](const Patience&) { return std::move(lanes); });
}

std::unique_ptr<Communicator> GpuCommunicator::split(int color, int key, const Settings& settings,
                                                     const std::optional<Error>& wrong) {
  throwIfFailed();
  CommunicatorOob oob(*this);
  const SplitGroup group = agreeOnSplit(oob, topology_, color, key, settings, wrong);
  Place place{job_, {}, numberOf(number_, ++splits_, color), nvlink_};
  for (int member : group.members)
    place.members.push_back(members_[static_cast<std::size_t>(member)]);
  const OnDevice here(*gpu_, device_);
  // By all: other colors are split off by the same call.
  const bool take = !group.members.empty() && group.disagreement.empty();
  Gpu::Comm comm = nullptr;
  {
    const Use use(*this);
    comm = gpu_->split(use.require().root(), take ? color : -1, group.rank, Gpu::Purpose::parts,
                       use.require().patience());
  }
  if (!group.disagreement.empty()) throw Error(moecclInvalidUsage, group.disagreement);
  if (!take) return nullptr;
  auto lanes = std::make_unique<NcclLanes>(gpu_, comm, patienceOf(place, settings.timeoutMs),
                                           settings.registers);
  return std::unique_ptr<Communicator>(new GpuCommunicator(
      std::move(lanes), group.rank, Topology(group.nodes), settings, std::move(place)));
}

// The new communicator has lanes of its own, by an id that the survivors tell one another over the
// watch.
std::unique_ptr<Communicator> GpuCommunicator::shrink(const std::vector<int>& excluded,
                                                      const Settings& settings,
                                                      const std::optional<Error>& wrong) {
  const OnDevice here(*gpu_, device_);
  return shrinkTo({job_->watch(), number_, members_, rank_, settings.timeoutMs, &shrinks_, ended_,
                   [] { return false; }},
                  excluded, wrong, [&](Oob& oob) { return create(oob, settings); });
}

std::unique_ptr<Communicator> GpuCommunicator::subset(const std::vector<int>&, const Settings&) {
  throw Error(moecclInvalidUsage,
              "a GPU communicator has no subsets that its members make alone; use moecclCommSplit, "
              "or moecclCommInitOob among the members");
}

}  // namespace moeccl

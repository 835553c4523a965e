#include "src/comm/gpu_communicator.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "kernels/reduce.h"
#include "src/bootstrap/host.h"
#include "src/comm/agreement.h"
#include "src/comm/gpu_oob.h"
#include "src/comm/operands.h"
#include "src/comm/plan_cache.h"
#include "src/error.h"
#include "src/log.h"
#include "src/text.h"

namespace moeccl {
namespace {

std::string nameOf(const AlgorithmChoice& choice) {
  return std::string(nameOf(choice.algorithm->collective)) + " (" +
         std::string(choice.algorithm->name) + ")";
}

Topology discover(Oob& oob, const Settings& settings, Gpu& gpu) {
  const std::vector<HostIdentity> hosts = exchangeValue(oob, hostIdentity(settings.nodeId));
  Topology topology = buildTopology(hosts);
  const LogSource who{oob.rank(), oob.ranks()};
  log(LogLevel::info, who,
      "joined over %s: %d ranks on %d nodes, this is local rank %d of node %d (%s), on device %d",
      gpu.name().c_str(), oob.ranks(), topology.nodes(), topology.localOf(oob.rank()),
      topology.nodeOf(oob.rank()), hosts[static_cast<std::size_t>(oob.rank())].name, gpu.device());
  if (!settings.trace.empty())
    log(LogLevel::warn, who,
        "MOECCL_TRACE: calls on GPUs are not recorded; Nsight Systems shows their kernels");
  return topology;
}

Gpu::Native nativeOf(Collective collective) {
  switch (collective) {
    case Collective::allToAll:
      return Gpu::Native::allToAll;
    case Collective::allGather:
      return Gpu::Native::allGather;
    case Collective::reduceScatter:
      return Gpu::Native::reduceScatter;
    case Collective::allReduce:
      return Gpu::Native::allReduce;
    default:
      throw Error(moecclInternalError,
                  std::string(nameOf(collective)) + " has no function of NCCL's");
  }
}

std::int64_t mostTerms(const Plan& plan) {
  std::int64_t most = 0;
  for (const Op& op : plan.ops)
    if (op.kind == OpKind::reduce)
      most = std::max(most, blockCount(plan.src(op)) / blockCount(plan.dst(op)));
  return most;
}

// The NCCL communicator of all ranks of `oob`.
Gpu::Comm joinAll(Oob& oob, const Settings& settings, std::shared_ptr<Gpu>* gpu) {
  Gpu::Id id{};
  agreeAfter(oob, [&] {
    *gpu = openGpu();
    if (oob.rank() == 0) id = (*gpu)->newId();
  });
  id = exchangeValue(oob, id)[0];
  Gpu::Comm comm = nullptr;
  agreeAfter(oob, [&] { comm = (*gpu)->join(id, oob.ranks(), oob.rank(), settings.timeoutMs); });
  return comm;
}

}  // namespace

void requireFewTerms(const AlgorithmChoice& choice, const Topology& topology) {
  constexpr auto kMost = static_cast<std::int64_t>(cuda::kMaxTerms);
  // A sum has one term of each rank at most.
  if (topology.ranks() <= kMost) return;
  for (int rank = 0; rank < topology.ranks(); ++rank)
    if (const std::int64_t terms =
            mostTerms(choice.algorithm->plan(topology, choice.parameters, rank));
        terms > kMost)
      throw Error(moecclInvalidUsage,
                  nameOf(choice) + stringf(" is not offered on GPUs here: rank %d would add %lld "
                                           "terms at once, and %lld are possible; choose another "
                                           "algorithm",
                                           rank, static_cast<long long>(terms),
                                           static_cast<long long>(kMost)));
}

GpuCommunicator::GpuCommunicator(std::unique_ptr<NcclLanes> lanes, int rank, Topology topology,
                                 Settings settings)
    : Communicator(rank, std::move(topology), std::move(settings)), lanes_(std::move(lanes)) {}

std::unique_ptr<Communicator> GpuCommunicator::create(Oob& oob, const Settings& settings) {
  requireAgreement(oob, settings);
  std::shared_ptr<Gpu> gpu;
  const Gpu::Comm comm = joinAll(oob, settings, &gpu);
  auto lanes = std::make_unique<NcclLanes>(gpu, comm, settings.timeoutMs);
  Topology topology = discover(oob, settings, *gpu);
  return std::unique_ptr<Communicator>(
      new GpuCommunicator(std::move(lanes), oob.rank(), std::move(topology), settings));
}

std::unique_ptr<Communicator> GpuCommunicator::adopt(Gpu::Comm theirs, const Settings& settings) {
  const std::shared_ptr<Gpu> gpu = openGpu();
  gpu->settle(theirs, settings.timeoutMs);
  const int device = gpu->device(theirs), current = gpu->device();
  const OnDevice here(*gpu, device);
  auto lanes = std::make_unique<NcclLanes>(
      gpu, gpu->split(theirs, 0, gpu->rank(theirs), Gpu::Purpose::parts, settings.timeoutMs),
      settings.timeoutMs);
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
  Topology topology = discover(oob, settings, *gpu);
  return std::unique_ptr<Communicator>(
      new GpuCommunicator(std::move(lanes), oob.rank(), std::move(topology), settings));
}

std::unique_ptr<Communicator> GpuCommunicator::split(int color, int key, const Settings& settings) {
  throwIfFailed();
  CommunicatorOob oob(*this);
  const SplitGroup group = agreeOnSplit(oob, topology_, color, key, settings);
  const OnDevice here(lanes_->gpu(), lanes_->device());
  // By all: other colors are split off by the same call.
  const bool take = !group.members.empty() && group.disagreement.empty();
  const Gpu::Comm comm = lanes_->gpu().split(lanes_->root(), take ? color : -1, group.rank,
                                             Gpu::Purpose::parts, settings_.timeoutMs);
  if (!group.disagreement.empty()) throw Error(moecclInvalidUsage, group.disagreement);
  if (!take) return nullptr;
  return std::unique_ptr<Communicator>(new GpuCommunicator(
      std::make_unique<NcclLanes>(lanes_->sharedGpu(), comm, settings.timeoutMs), group.rank,
      Topology(group.nodes), settings));
}

std::unique_ptr<Communicator> GpuCommunicator::shrink(const std::vector<int>&, const Settings&) {
  throw Error(moecclInvalidUsage, "a GPU communicator cannot be shrunk yet");
}

std::unique_ptr<Communicator> GpuCommunicator::subset(const std::vector<int>&, const Settings&) {
  throw Error(moecclInvalidUsage,
              "a GPU communicator has no subsets that its members make alone; use moecclCommSplit, "
              "or moecclCommInitOob among the members");
}

void GpuCommunicator::requireServed(const AlgorithmChoice& choice, const Plan& plan) const {
  // Relays would have to be told sizes first, and the host to wait for them.
  if (choice.algorithm->collective == Collective::allToAllv && plan.relays)
    throw Error(
        moecclInvalidUsage,
        nameOf(choice) +
            " is not offered on GPUs: its relays must know how much they will carry, and to "
            "ask would block the stream's caller; linear and pairwise are");
  if (choice.algorithm->native && !lanes_->gpu().has(nativeOf(choice.algorithm->collective)))
    throw Error(moecclInvalidUsage, nameOf(choice) + " needs NCCL 2.28, and this is " +
                                        lanes_->gpu().name() + "; choose another algorithm");
  requireFewTerms(choice, topology_);
}

bool GpuCommunicator::serves(const AlgorithmChoice& choice) {
  // Asked before every call whose algorithm nobody has fixed.
  const auto same = [&](const CachedRun& cached) { return cached.choice == choice; };
  if (std::ranges::any_of(runs_, same)) return true;
  if (std::ranges::find(refused_, choice) != refused_.end()) return false;
  try {
    requireServed(choice, preparePlan(choice, topology_, rank_)->plan());
    return true;
  } catch (const Error&) {
    refused_.push_back(choice);
    return false;
  }
}

NcclRun& GpuCommunicator::runFor(const AlgorithmChoice& choice) {
  for (const CachedRun& cached : runs_)
    if (cached.choice == choice) return *cached.run;
  std::shared_ptr<const PreparedPlan> plan = preparePlan(choice, topology_, rank_);
  requireServed(choice, plan->plan());
  runs_.push_back({choice, std::make_unique<NcclRun>(std::move(plan))});
  return *runs_.back().run;
}

// On the first lane, in one group.
void GpuCommunicator::enqueueMessages(const Call& call, void* stream) {
  if (lanes_->lanes() == 0)
    throw Error(moecclInvalidUsage,
                "the first call of a GPU communicator must be one that all ranks make, such as "
                "moecclBarrier; sends and receives can follow");
  const OnDevice here(lanes_->gpu(), lanes_->device());
  try {
    lanes_->begin(stream, {});
    GpuGroup group(lanes_->gpu());
    for (const Message& message : call.messages) {
      if (message.bytes == 0) continue;
      if (message.isSend)
        lanes_->gpu().send(message.data, message.bytes, message.peer, lanes_->comm(0), stream);
      else
        lanes_->gpu().recv(message.data, message.bytes, message.peer, lanes_->comm(0), stream);
    }
    group.end();
    lanes_->end(stream);
  } catch (const RefusedInCapture& e) {
    throw Error(e.result(), std::string("messages: ") + e.what());
  } catch (const Error& e) {
    fail(e.result(), "messages of rank " + std::to_string(rank_) + ": " + e.what());
    throwIfFailed();
  }
}

// NCCL has not all of our types and operators, and lets a number win against a NaN.
bool GpuCommunicator::isNative(const Call& call) {
  if (!call.choice.algorithm->native) return false;
  const bool reduces =
      call.collective() == Collective::allReduce || call.collective() == Collective::reduceScatter;
  const bool sums = call.op == moecclSum || call.op == moecclProd || call.op == moecclAvg;
  return !reduces || (sums && call.datatype <= moecclBfloat16);
}

void GpuCommunicator::enqueueNative(const Call& call, void* stream) {
  const Gpu::Native what = nativeOf(call.collective());
  const bool moves = what == Gpu::Native::allToAll || what == Gpu::Native::allGather;
  lanes_->begin(stream, {});
  lanes_->gpu().run(what, static_cast<const std::byte*>(call.input),
                    static_cast<std::byte*>(call.output),
                    moves ? call.blockBytes : call.blockBytes / sizeOf(call.datatype),
                    moves ? moecclUint8 : call.datatype, call.op == moecclAvg ? moecclSum : call.op,
                    lanes_->comm(0), stream);
  lanes_->end(stream);
}

void GpuCommunicator::launch(Call call, void* stream) {
  throwIfFailed();
  if (!call.isCollective()) return enqueueMessages(call, stream);
  NcclRun& run = runFor(call.choice);
  const auto name = [&call] { return nameOf(call.choice); };
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "%s, %zu bytes per block, on stream %p", name().c_str(),
        call.blockBytes, stream);
  const OnDevice here(lanes_->gpu(), lanes_->device());
  try {
    if (isNative(call))
      enqueueNative(call, stream);
    else
      run.enqueue(*lanes_, operandsOf(call, run.prepared().plan(), nullptr, &scratch_), stream);
    if (const std::span<std::byte> sums = sumsToDivide(call, rank_); !sums.empty())
      lanes_->gpu().divide(call.datatype, sums.data(), sums.size(), ranks(), stream);
  } catch (const RefusedInCapture& e) {
    throw Error(e.result(), name() + ": " + e.what());
  } catch (const Error& e) {
    fail(e.result(), name() + " on rank " + std::to_string(rank_) + ": " + e.what());
    throwIfFailed();
  }
}

void GpuCommunicator::allgather(const void* send, void* recv, std::size_t bytes) {
  throwIfFailed();
  try {
    GpuOob(*lanes_).allgather(send, recv, bytes);
  } catch (const Error& e) {
    fail(e.result(), "rank " + std::to_string(rank_) + ": " + e.what());
    throwIfFailed();
  }
}

void GpuCommunicator::throwIfFailed() const {
  if (failure_ != moecclSuccess) throw Error(failure_, failureText_);
}

void GpuCommunicator::fail(moecclResult_t result, const std::string& text) {
  if (failure_ != moecclSuccess) return;
  failure_ = result;
  failureText_ = text;
  log(LogLevel::warn, {rank_, ranks()}, "%s", text.c_str());
}

moecclResult_t GpuCommunicator::asyncFailure() {
  std::string text;
  if (failure_ == moecclSuccess)
    if (const moecclResult_t result = lanes_->asyncError(&text); result != moecclSuccess)
      fail(result, "work on a stream of rank " + std::to_string(rank_) + " failed: " + text);
  return failure_;
}

void GpuCommunicator::requireUnused() const {
  using Clock = std::chrono::steady_clock;
  // CUDA tells a while after the end of a graph.
  for (const Clock::time_point begin = Clock::now(); lanes_->graphs() > 0;) {
    if (Clock::now() - begin > std::chrono::seconds(1))
      throw Error(
          moecclInvalidUsage,
          stringf("%ld CUDA graphs that calls of this communicator were captured into still "
                  "exist on rank %d; destroy them first (cudaGraphExecDestroy, "
                  "cudaGraphDestroy), or call moecclCommAbort",
                  lanes_->graphs(), rank_));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void GpuCommunicator::destroy() {
  if (failure_ != moecclSuccess) return abort();
  const OnDevice here(lanes_->gpu(), lanes_->device());
  try {
    lanes_->await("rank " + std::to_string(rank_) + " destroys its communicator");
  } catch (...) {
    abort();
    throw;
  }
  lanes_->destroy();
  lanes_.reset();
}

void GpuCommunicator::abort() { NcclLanes::abort(std::move(lanes_)); }

}  // namespace moeccl

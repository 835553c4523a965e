// Enqueues calls on lanes.
#include "src/comm/gpu_communicator.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "kernels/reduce.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/operands.h"
#include "src/comm/plan_cache.h"
#include "src/exec/row_run.h"

namespace moeccl {
namespace {

std::string nameOf(const AlgorithmChoice& choice) {
  return std::string(nameOf(choice.algorithm->collective)) + " (" +
         std::string(choice.algorithm->name) + ")";
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
                                 Settings settings, Place place)
    : Communicator(rank, std::move(topology), std::move(settings)),
      gpu_(lanes->sharedGpu()),
      device_(lanes->device()),
      nvlink_(place.nvlink),
      job_(std::move(place.job)),
      members_(std::move(place.members)),
      number_(place.number),
      lanes_(std::move(lanes)) {
  lanes_->setPatience({settings_.timeoutMs, [this] {
                         job_->requireAlive(members_);
                         throwIfFailed();
                       }});
  job_->add(*this);
}

void GpuCommunicator::requireServed(const AlgorithmChoice& choice) const {
  if (choice.algorithm->native && !gpu_->has(nativeOf(choice.algorithm->collective)))
    throw Error(moecclInvalidUsage, nameOf(choice) + " needs NCCL 2.28, and this is " +
                                        gpu_->name() + "; choose another algorithm");
  requireFewTerms(choice, topology_);
}

bool GpuCommunicator::serves(const AlgorithmChoice& choice) {
  // Asked before every call whose algorithm nobody has fixed.
  const auto same = [&](const CachedRun& cached) { return cached.plan.choice == choice; };
  if (std::ranges::any_of(runs_, same)) return true;
  if (std::ranges::find(refused_, choice) != refused_.end()) return false;
  try {
    preparePlan(choice, topology_, rank_);
    requireServed(choice);
    return true;
  } catch (const Error&) {
    refused_.push_back(choice);
    return false;
  }
}

GpuCommunicator::CachedRun& GpuCommunicator::runFor(const AlgorithmChoice& choice) {
  for (CachedRun& cached : runs_)
    if (cached.plan.choice == choice) return cached;
  std::shared_ptr<const PreparedPlan> plan = preparePlan(choice, topology_, rank_);
  requireServed(choice);
  CachedRun& run = runs_.emplace_back();
  run.plan.choice = choice;
  run.plan.digest = digestOf(choice);
  run.run = std::make_unique<NcclRun>(std::move(plan));
  return run;
}

// Enqueues sends and receives on the first lane, in one group.
void GpuCommunicator::enqueueMessages(const MessagesCall& call, void* stream) {
  const auto what = [this] { return "messages of rank " + std::to_string(rank_); };
  onLanes(what, [&](NcclLanes& lanes) {
    lanes.begin(stream, {});
    LaneGroup group(lanes, 0, stream);
    for (const Message& message : call.messages) {
      if (message.bytes == 0) continue;
      if (message.isSend)
        group.send(message.data, message.bytes, message.peer);
      else
        group.recv(message.data, message.bytes, message.peer);
    }
    group.end();
    lanes.end(stream);
  });
}

void GpuCommunicator::requireNoCapture(void* stream) const {
  if (gpu_->capture(stream) != 0)
    throw RefusedInCapture(moecclInvalidUsage,
                           "the stream is being captured, and it is the first such call of this "
                           "routing: make it once before the capture");
}

void GpuCommunicator::meetFor(NcclLanes& lanes, std::uint64_t name, void* stream) {
  if (std::ranges::find(metRows_, name) != metRows_.end()) return;
  requireNoCapture(stream);
  lanes.meet();
  metRows_.push_back(name);
}

void GpuCommunicator::enqueue(const std::shared_ptr<const PlanName>& name, void* stream,
                              std::size_t tokens,
                              const std::function<void(NcclLanes& lanes)>& body) {
  const auto what = [&] { return onRank(name->text); };
  onLanes(what, [&](NcclLanes& lanes) {
    if (tokens > 0) {
      noteCall({name, tokens}, stream);
      meetFor(lanes, name->digest, stream);
    }
    body(lanes);
  });
}

void GpuCommunicator::enqueueRows(const Call& call, void* stream) {
  CachedPlan& own = *call.rows()->plan;
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "%s, %zu bytes per block, on stream %p",
        own.name().c_str(), call.rows()->blockBytes, stream);
  const auto what = [&] { return onRank(own.name()); };
  onLanes(what, [&](NcclLanes& lanes) {
    noteCall({own, call}, stream);
    const Operands operands = operandsOf(call, own.plan->plan(), nullptr, &scratch_);
    if (own.rows == nullptr || !own.rows->serves(operands)) {
      requireNoCapture(stream);
      meetFor(lanes, own.digest, stream);
      own.rows = std::make_shared<RowRun>(own.plan, lanes.rowMemory(), operands);
    }
    own.rows->enqueue(lanes, operands, stream);
  });
}

// NCCL has not all of our types and operators, and lets a number win against a NaN.
bool GpuCommunicator::isNative(const CollectiveCall& call) {
  if (!call.choice.algorithm->native) return false;
  const bool reduces =
      call.collective == Collective::allReduce || call.collective == Collective::reduceScatter;
  const bool sums = call.op == moecclSum || call.op == moecclProd || call.op == moecclAvg;
  return !reduces || (sums && call.datatype <= moecclBfloat16);
}

void GpuCommunicator::enqueueNative(NcclLanes& lanes, const CollectiveCall& call, void* stream) {
  const Gpu::Native what = nativeOf(call.collective);
  const bool moves = what == Gpu::Native::allToAll || what == Gpu::Native::allGather;
  lanes.begin(stream, {});
  lanes.run(what, static_cast<const std::byte*>(call.input), static_cast<std::byte*>(call.output),
            moves ? call.blockBytes : call.blockBytes / sizeOf(call.datatype),
            moves ? moecclUint8 : call.datatype, call.op == moecclAvg ? moecclSum : call.op,
            stream);
  lanes.end(stream);
}

void GpuCommunicator::launch(Call call, void* stream) {
  throwIfFailed();
  if (const MessagesCall* const messages = call.messages(); messages != nullptr)
    return enqueueMessages(*messages, stream);
  if (call.rows() != nullptr) return enqueueRows(call, stream);
  enqueueCollective(call, stream);
}

void GpuCommunicator::enqueueCollective(const Call& call, void* stream) {
  const CollectiveCall& it = *call.collective();
  CachedRun& cached = runFor(it.choice);
  NcclRun& run = *cached.run;
  // Relays would have to be told sizes first, and the host to wait for them.
  if (it.collective == Collective::allToAllv && !it.bounded && run.prepared().plan().relays)
    throw Error(moecclInvalidUsage,
                nameOf(it.choice) +
                    " needs a bound on GPUs: its relays must know how much they will carry, and to "
                    "ask would block the stream's caller; linear and pairwise need none, and "
                    "moecclAllToAllvBounded gives one where P blocks of it are at most 64 MiB");
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "%s, %zu bytes per block, on stream %p",
        nameOf(it.choice).c_str(), it.blockBytes, stream);
  const auto what = [&] { return onRank(nameOf(it.choice)); };
  onLanes(what, [&](NcclLanes& lanes) {
    const bool captured = noteCall({cached.plan, call}, stream);
    if (!cached.met && !captured) {
      lanes.meet();
      cached.met = true;
    }
    if (isNative(it))
      enqueueNative(lanes, it, stream);
    else
      run.enqueue(lanes, operandsOf(call, run.prepared().plan(), nullptr, &scratch_), stream);
    if (const std::span<std::byte> sums = sumsToDivide(call, rank_); !sums.empty())
      gpu_->divide(it.datatype, sums.data(), sums.size(), ranks(), stream);
  });
}

void GpuCommunicator::requireUnused() const {
  using Clock = std::chrono::steady_clock;
  const auto graphs = [this] {
    const std::lock_guard lock(mutex_);
    return lanes_ == nullptr ? 0 : lanes_->graphs();
  };
  // CUDA tells a while after the end of a graph.
  for (const Clock::time_point begin = Clock::now(); graphs() > 0;) {
    if (Clock::now() - begin > std::chrono::seconds(1))
      throw Error(
          moecclInvalidUsage,
          stringf("%ld CUDA graphs that calls of this communicator were captured into still "
                  "exist on rank %d; destroy them first (cudaGraphExecDestroy, "
                  "cudaGraphDestroy), or call moecclCommAbort",
                  graphs(), rank_));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void GpuCommunicator::destroy() {
  ended_ = true;
  if (!failureText().empty()) return abort();
  const OnDevice here(*gpu_, device_);
  try {
    const Use use(*this);
    use.require().await("rank " + std::to_string(rank_) + " destroys its communicator");
  } catch (...) {
    abort();
    throw;
  }
  std::unique_ptr<NcclLanes> lanes;
  {
    // The job's thread may be asking them whether calls are complete.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return users_ == 0; });
    lanes = std::move(lanes_);
  }
  if (lanes != nullptr) lanes->destroy();
  job_->remove(*this);
}

}  // namespace moeccl

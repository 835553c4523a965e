// Begins and ends calls, each a run of its plan or of messages.
#include "src/comm/host_communicator.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "kernels/reduce.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/operands.h"

namespace moeccl {
namespace {

// How many calls lie between two looks for ranks that have made other calls.
constexpr std::uint32_t kLookEvery = 8;

// The operands of the part of a call that tells sizes: one number for each block, by the same plan.
Operands operandsOfCounts(const Call& call, RunSlot* slot) {
  slot->sendBytes.clear();
  for (const Extent& extent : call.planned()->inputTable) slot->sendBytes.push_back(extent.bytes);
  slot->recvBytes.assign(call.planned()->outputTable.size(), 0);
  constexpr std::size_t kBytes = sizeof(std::uint64_t);
  Operands operands;
  operands.input = reinterpret_cast<const std::byte*>(slot->sendBytes.data());
  operands.output = reinterpret_cast<std::byte*>(slot->recvBytes.data());
  operands.inputExtents = operands.outputExtents = operands.scratchExtents =
      Extents::uniform(kBytes);
  operands.scratchBytes = kBytes * slot->run.prepared().plan().scratch.size();
  return operands;
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<Domain> domain, std::uint32_t number, int rank,
                                   Topology topology, std::vector<int> transportRanks,
                                   Settings settings)
    : Communicator(rank, std::move(topology), std::move(settings)),
      domain_(std::move(domain)),
      number_(number),
      transportRanks_(std::move(transportRanks)) {
  Domain::Lock lock(*domain_);
  domain_->add(*this);
}

HostCommunicator::~HostCommunicator() {
  Domain::Lock lock(*domain_);
  for (const std::shared_ptr<CachedPlan>& plan : plans_.all())
    for (std::unique_ptr<RunSlot>& slot : plan->slots)
      if (!slot->run.idle()) domain_->keep(std::move(slot));
  for (std::unique_ptr<MessageRun>& run : messageRuns_)
    if (!run->idle()) domain_->keep(std::move(run));
}

std::string HostCommunicator::nameOf(const Active& active) {
  return active.plan == nullptr ? "messages" : active.plan->name();
}

CachedPlan& HostCommunicator::planOf(const Call& call) {
  if (const RowsCall* const rows = call.rows(); rows != nullptr) return *rows->plan;
  return plans_.get(call.collective()->choice, topology_, rank_);
}

HostCommunicator::Active HostCommunicator::beginMessages(const MessagesCall& call) {
  if (idleMessageRuns_.empty()) {
    messageRuns_.push_back(std::make_unique<MessageRun>());
    idleMessageRuns_.push_back(messageRuns_.back().get());
  }
  Active active;
  active.messages = idleMessageRuns_.back();
  idleMessageRuns_.pop_back();
  active.messages->start({&domain_->transport(), transportRanks_, number_, call.kind, rank_},
                         call.messages, &waiting_);
  return active;
}

HostCommunicator::Active HostCommunicator::begin(const Call& call, std::uint32_t number) {
  throwIfFailed();
  if (const MessagesCall* const messages = call.messages(); messages != nullptr) {
    const Active active = beginMessages(*messages);
    domain_->watch(*this, active.run(), nullptr, std::chrono::milliseconds(call.timeoutMs));
    return active;
  }
  if (const RowsCall* const rows = call.rows(); rows != nullptr) plans_.add(rows->plan);
  CachedPlan& plan = planOf(call);
  Active active{&plan.take(), &plan, number};
  active.looks = looks_;
  active.counting = isSized(call) && call.planned()->content == nullptr && plan.plan->plan().relays;
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "communicator %u: call %u: %s, %zu bytes per block",
        number_, number, plan.name().c_str(), call.planned()->blockBytes);
  start(call, active);
  domain_->watch(*this, active.slot->run, &active.slot->run,
                 std::chrono::milliseconds(call.timeoutMs));
  return active;
}

bool HostCommunicator::isOver(const Active& active) {
  Run& run = active.run();
  if (run.failed()) return !awaitsCause(run);
  return run.idle();
}

bool HostCommunicator::proceed(const Call& call, Active* active) {
  if (!active->counting || active->run().failed() || failure_.any()) return false;
  domain_->unwatch(active->run());
  checkCounts(call, *active);
  active->counting = false;
  start(call, *active);
  domain_->watch(*this, active->slot->run, &active->slot->run,
                 std::chrono::milliseconds(call.timeoutMs));
  return true;
}

void HostCommunicator::start(const Call& call, const Active& active) {
  const PreparedPlan& plan = *active.plan->plan;
  Operands operands;
  try {
    // The first part has left the sizes where the data will be.
    operands = active.counting ? operandsOfCounts(call, active.slot)
                               : operandsOf(call, plan.plan(), active.slot->run.scratch(),
                                            &active.slot->scratch);
    Route route;
    route.transport = &domain_->transport();
    route.transportRank = transportRanks_;
    route.tag.comm = number_;
    route.tag.call = active.number;
    route.tag.digest =
        static_cast<std::uint32_t>(CallSignature(*active.plan, call).digest() & tagBits(kWhatBits));
    route.tag.part = active.counting ? kSizes : kData;
    route.tag.source = static_cast<std::uint32_t>(transportRanks_[rank_]);
    route.trace = domain_->trace();
    if (route.trace != nullptr) route.traceLabel = route.trace->label(active.plan->name());
    const RowsCall* const rows = active.counting ? nullptr : call.rows();
    if (rows != nullptr && rows->prepare) rows->prepare();
    active.slot->run.start(route, operands);
  } catch (const std::bad_alloc&) {
    // Peers are in this call already.
    active.plan->giveBack(*active.slot);
    fail(moecclSystemError, rank_,
         active.plan->name() + ": rank " + std::to_string(rank_) + " has no memory for " +
             std::to_string(operands.scratchBytes) + " bytes of scratch and its messages",
         true);
    throwIfFailed();
  }
}

// What peers send is known before it comes: the first of them that disagrees is named.
void HostCommunicator::checkCounts(const Call& call, const Active& active) {
  for (int source = 0; source < ranks(); ++source) {
    const std::uint64_t sends = active.slot->recvBytes[source];
    const std::size_t expects = call.planned()->outputTable[source].bytes;
    if (sends == expects) continue;
    active.plan->giveBack(*active.slot);
    fail(moecclRemoteError, source,
         active.plan->name() + ": " + sizesText(source, sends, rank_, expects), true);
    throwIfFailed();
  }
}

std::uint32_t HostCommunicator::nextCall(const Call& call, Domain::Lock& lock) {
  if (call.planned() == nullptr) return 0;
  const CachedPlan& plan = planOf(call);
  domain_->wait(lock, [this] { return calls_.hasRoom() || failure_.any(); });
  throwIfFailed();
  return calls_.add(CallSignature(plan, call));
}

std::uint32_t HostCommunicator::takeNumber(const Call& call) {
  Domain::Lock lock(*domain_);
  domain_->takeNews();
  throwIfFailed();
  return nextCall(call, lock);
}

void HostCommunicator::giveUp(const std::string& why) {
  Domain::Lock lock(*domain_);
  abandon(why);
}

void HostCommunicator::abandon(const std::string& why) {
  fail(moecclRemoteError, -1, "a call queued on a stream was dropped: " + why, true);
}

void HostCommunicator::end(const Call& call, const Active& active) {
  if (active.plan != nullptr) calls_.release(active.number);
  const Run& run = active.run();
  domain_->unwatch(run);
  if (run.failed()) failFrom(run, nameOf(active));
  if (run.idle()) {
    if (active.messages != nullptr) {
      waiting_.forget(*active.messages);
      idleMessageRuns_.push_back(active.messages);
    } else {
      active.plan->giveBack(*active.slot);
    }
  }
  if (active.plan != nullptr && !failure_.any()) {
    judge(active);
    if (active.number % kLookEvery == 0) lookBehind(active.number);
  }
  // A call that had completed when another one failed is complete.
  const bool fails = failure_.any() && (run.failed() || active.counting);
  const std::string name = fails ? nameOf(active) : std::string();
  if (active.plan != nullptr && active.plan->own && active.plan->allIdle())
    plans_.drop(*active.plan);
  if (fails) throw Error(failure_.result, remote_ ? name + ": " + failure_.text : failure_.text);
  if (const std::span<std::byte> sums = sumsToDivide(call, rank_); !sums.empty())
    divide(call.planned()->datatype, sums.data(), sums.size(), ranks());
  if (const RowsCall* const rows = call.rows(); rows != nullptr && rows->finish) rows->finish();
}

void HostCommunicator::launch(Call call, void* stream) {
  call.timeoutMs = callTimeoutMs_;
  if (stream == nullptr)
    run(call);
  else
    static_cast<CallQueue*>(stream)->enqueue(*this, std::move(call));
}

void HostCommunicator::allgather(const void* send, void* recv, std::size_t bytes) {
  static const auto inside = std::make_shared<PlanName>("a split, a grid's creation or the like");
  CollectiveCall call{
      {send, recv, bytes}, Collective::allGather, {&firstAlgorithm(Collective::allGather)}};
  call.inside = inside;
  run({std::move(call), settings_.timeoutMs});
}

void HostCommunicator::run(const Call& call) {
  Domain::Lock lock(*domain_);
  domain_->takeNews();
  throwIfFailed();
  const std::uint32_t number = nextCall(call, lock);
  Active active;
  try {
    active = begin(call, number);
    do {
      domain_->wait(lock, [&] { return isOver(active); });
    } while (proceed(call, &active));
  } catch (...) {
    if (call.planned() != nullptr) calls_.release(number);
    throw;
  }
  const Run& run = active.run();
  if (run.failed()) domain_->waitFor(lock, kGrace, [&] { return run.idle(); });
  end(call, active);
}

bool HostCommunicator::isIdle() const {
  bool idle = true;
  forEachRun([&](const Run& run) { idle &= run.idle(); });
  return idle;
}

void HostCommunicator::waitUntil(const std::function<bool()>& done) {
  Domain::Lock lock(*domain_);
  domain_->wait(lock, [&] { return done() || failure_.any(); });
  throwIfFailed();
}

void HostCommunicator::requireIdle() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  const bool queued = std::ranges::any_of(domain_->streams(),
                                          [&](const Domain::Work* s) { return s->uses(*this); });
  if (!failure_.any() && (queued || !isIdle()))
    throw Error(moecclInvalidUsage,
                "calls of the communicator are unfinished; synchronise its streams first, or call "
                "moecclCommAbort");
}

void HostCommunicator::destroy() {
  ended_ = true;
  Domain::Lock lock(*domain_);
  const auto isUsed = [&] {
    return !failure_.any() && std::ranges::any_of(domain_->streams(), [&](const Domain::Work* s) {
      return s->uses(*this);
    });
  };
  domain_->wait(lock, [&] { return !isUsed(); });
  if (failure_.any()) awaitTransfers(lock);
  for (Domain::Work* stream : domain_->streams()) stream->forget(*this);
  parts_.clear();  // which say nothing to one that has left when they end
  if (failure_.any()) {
    domain_->remove(*this, true, {});
    return;
  }
  const std::chrono::milliseconds forever{1000LL * 1000 * 1000}, timeout{settings_.timeoutMs};
  if (!domain_->remove(*this, false, timeout.count() < 0 ? forever : timeout))
    throw Error(moecclTimeout, "rank " + std::to_string(rank_) + " waited " +
                                   std::to_string(settings_.timeoutMs) +
                                   " ms for all ranks to destroy their communicators, in vain; its "
                                   "own is freed");
}

void HostCommunicator::abort() {
  ended_ = true;
  Domain::Lock lock(*domain_);
  fail(moecclRemoteError, rank_, "rank " + std::to_string(rank_) + " aborted the communicator",
       true);
  awaitTransfers(lock);
  for (Domain::Work* stream : domain_->streams()) stream->forget(*this);
  parts_.clear();
  domain_->remove(*this, true, {});
}

void HostCommunicator::awaitTransfers(Domain::Lock& lock) {
  domain_->waitFor(lock, kGrace, [this] { return isIdle(); });
}

}  // namespace moeccl

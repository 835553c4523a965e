// Begins and ends calls, and fails the communicator on all its ranks where one cannot be completed.
#include "src/comm/host_communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <utility>

#include "kernels/reduce.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/operands.h"
#include "src/comm/stream.h"

namespace moeccl {
namespace {

// How long a call whose connection broke waits to hear which rank is dead or has given up. Usually
// at once: this is for busy machines.
constexpr std::chrono::milliseconds kCauseGrace{1000};
// How many calls lie between two looks for ranks that have made other calls.
constexpr std::uint32_t kLookEvery = 8;

std::string textOf(const CachedPlan& plan) { return plan.name(); }

std::string sizesText(int sender, std::uint64_t sends, int receiver, std::uint64_t expects) {
  return "rank " + std::to_string(sender) + " sends " + std::to_string(sends) +
         " bytes where rank " + std::to_string(receiver) + " expects " + std::to_string(expects);
}

// The operands of the part of a call that tells sizes: one number for each block, by the same plan.
Operands operandsOfCounts(const Call& call, RunSlot* slot) {
  slot->sendBytes.clear();
  for (const Extent& extent : call.inputTable) slot->sendBytes.push_back(extent.bytes);
  slot->recvBytes.assign(call.outputTable.size(), 0);
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
  return active.plan == nullptr ? "messages" : textOf(*active.plan);
}

HostCommunicator::Active HostCommunicator::begin(const Call& call, std::uint32_t number) {
  throwIfFailed();
  if (!call.isCollective()) {
    if (idleMessageRuns_.empty()) {
      messageRuns_.push_back(std::make_unique<MessageRun>());
      idleMessageRuns_.push_back(messageRuns_.back().get());
    }
    Active active;
    active.messages = idleMessageRuns_.back();
    idleMessageRuns_.pop_back();
    active.messages->start({&domain_->transport(), transportRanks_, number_, call.kind, rank_},
                           call.messages, &waiting_);
    domain_->watch(*this, active.run(), nullptr, std::chrono::milliseconds(call.timeoutMs));
    return active;
  }
  if (call.own) plans_.add(call.own);
  CachedPlan& plan = call.own ? *call.own : plans_.get(call.choice, topology_, rank_);
  Active active{&plan.take(), &plan, number};
  active.looks = looks_;
  active.counting = call.sized() && call.content == nullptr && plan.plan->plan().relays;
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "communicator %u: call %u: %s, %zu bytes per block",
        number_, number, textOf(plan).c_str(), call.blockBytes);
  start(call, active);
  domain_->watch(*this, active.slot->run, &active.slot->run,
                 std::chrono::milliseconds(call.timeoutMs));
  return active;
}

bool HostCommunicator::awaitsCause(const Run& run) {
  if (failure_ != moecclSuccess || (run.failure().status != TransferStatus::unreachable &&
                                    run.failure().status != TransferStatus::failed))
    return false;
  const auto now = Clock::now();
  if (causeUntil_ == Clock::time_point{}) causeUntil_ = now + kCauseGrace;
  return now < causeUntil_;
}

bool HostCommunicator::isOver(const Active& active) {
  Run& run = active.run();
  if (run.failed()) return !awaitsCause(run);
  return run.idle();
}

bool HostCommunicator::proceed(const Call& call, Active* active) {
  if (!active->counting || active->run().failed() || failure_ != moecclSuccess) return false;
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
    if (route.trace != nullptr) route.traceLabel = route.trace->label(textOf(*active.plan));
    if (call.prepare && !active.counting) call.prepare();
    active.slot->run.start(route, operands);
  } catch (const std::bad_alloc&) {
    // Peers are in this call already.
    active.plan->giveBack(*active.slot);
    fail(moecclSystemError, rank_,
         textOf(*active.plan) + ": rank " + std::to_string(rank_) + " has no memory for " +
             std::to_string(operands.scratchBytes) + " bytes of scratch and its messages",
         true);
    throwIfFailed();
  }
}

// What peers send is known before it comes: the first of them that disagrees is named.
void HostCommunicator::checkCounts(const Call& call, const Active& active) {
  for (int source = 0; source < ranks(); ++source) {
    const std::uint64_t sends = active.slot->recvBytes[source];
    const std::size_t expects = call.outputTable[source].bytes;
    if (sends == expects) continue;
    active.plan->giveBack(*active.slot);
    fail(moecclRemoteError, source,
         textOf(*active.plan) + ": " + sizesText(source, sends, rank_, expects), true);
    throwIfFailed();
  }
}

std::uint32_t HostCommunicator::nextCall(const Call& call, Domain::Lock& lock) {
  if (!call.isCollective()) return 0;
  const CachedPlan& plan = call.own ? *call.own : plans_.get(call.choice, topology_, rank_);
  domain_->wait(lock, [this] { return calls_.hasRoom() || failure_ != moecclSuccess; });
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
  if (active.plan != nullptr && failure_ == moecclSuccess) {
    judge(active);
    if (active.number % kLookEvery == 0) lookBehind(active.number);
  }
  // A call that had completed when another one failed is complete.
  const bool fails = failure_ != moecclSuccess && (run.failed() || active.counting);
  const std::string name = fails ? nameOf(active) : std::string();
  if (active.plan != nullptr && active.plan->own && active.plan->allIdle())
    plans_.drop(*active.plan);
  if (fails) throw Error(failure_, remote_ ? name + ": " + failureText_ : failureText_);
  if (const std::span<std::byte> sums = sumsToDivide(call, rank_); !sums.empty())
    divide(call.datatype, sums.data(), sums.size(), ranks());
  if (call.finish) call.finish();
}

void HostCommunicator::launch(Call call, void* stream) {
  call.timeoutMs = callTimeoutMs_;
  if (stream == nullptr)
    run(call);
  else
    static_cast<Stream*>(stream)->enqueue(*this, std::move(call));
}

void HostCommunicator::allgather(const void* send, void* recv, std::size_t bytes) {
  Call call{{&firstAlgorithm(Collective::allGather)}, send, recv, bytes};
  static const auto inside = std::make_shared<PlanName>("a split, a grid's creation or the like");
  call.inside = inside;
  call.timeoutMs = settings_.timeoutMs;
  run(call);
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
    if (call.isCollective()) calls_.release(number);
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
  domain_->wait(lock, [&] { return done() || failure_ != moecclSuccess; });
  throwIfFailed();
}

void HostCommunicator::requireIdle() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  const bool queued =
      std::ranges::any_of(domain_->streams(), [&](Stream* s) { return s->uses(*this); });
  if (failure_ == moecclSuccess && (queued || !isIdle()))
    throw Error(moecclInvalidUsage,
                "calls of the communicator are unfinished; synchronise its streams first, or call "
                "moecclCommAbort");
}

void HostCommunicator::throwIfFailed() const {
  if (failure_ != moecclSuccess) throw Error(failure_, failureText_);
}

moecclResult_t HostCommunicator::asyncFailure() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  return failure_;
}

std::string HostCommunicator::failureText() {
  Domain::Lock lock(*domain_);
  return failureText_;
}

void HostCommunicator::fail(moecclResult_t result, int culprit, const std::string& text,
                            bool tellOthers) {
  if (failure_ != moecclSuccess) return;
  failure_ = result;
  failureText_ = text;
  remote_ = !tellOthers;
  log(LogLevel::warn, {rank_, ranks()}, "communicator %u: %s", number_, text.c_str());
  if (tellOthers) notify(result, culprit, text, nullptr);
  forEachRun([](Run& run) {
    if (!run.idle()) run.cancel();
  });
}

Notice HostCommunicator::noticeOf(moecclResult_t result, const std::string& text) const {
  Notice notice;
  notice.source = transportRanks_[rank_];
  notice.result = result;
  notice.comm = number_;
  std::snprintf(notice.text, sizeof(notice.text), "%s", text.c_str());
  return notice;
}

void HostCommunicator::notify(moecclResult_t result, int culprit, const std::string& text,
                              const CallRecord* asked) {
  Notice notice = noticeOf(result, text);
  notice.culprit = culprit < 0 ? -1 : transportRanks_[culprit];
  if (asked != nullptr) {
    notice.call = asked->number;
    notice.digest = asked->signature.digest();
  }
  domain_->watch().notify(notice);
}

void HostCommunicator::revoke(const std::string& text) {
  Domain::Lock lock(*domain_);
  domain_->takeNews();
  if (revocation_) return;
  Notice notice = noticeOf(moecclRemoteError, text);
  notice.revokes = 1;
  domain_->watch().notify(notice);
  revoked({rank_, text});
}

void HostCommunicator::revoked(const Revocation& by) {
  if (revocation_) return;
  revocation_ = by;
  fail(moecclRemoteError, -1, by.message(), false);
  for (HostCommunicator* other : domain_->communicators())
    if (other->whole_ == this) other->revoked(by.ofWhole());
}

void HostCommunicator::dependOn(Communicator& whole) {
  Domain::Lock lock(*domain_);
  auto& it = dynamic_cast<HostCommunicator&>(whole);
  whole_ = &it;
  if (it.revocation_) revoked(it.revocation_->ofWhole());
}

void HostCommunicator::failFrom(const Run& run, const std::string& name) {
  const RunFailure& failure = run.failure();
  const std::string peer = "rank " + std::to_string(failure.peer);
  const std::string what = name + ": ";
  switch (failure.status) {
    case TransferStatus::ok:
    case TransferStatus::truncated:
      return fail(moecclRemoteError, failure.peer,
                  what + sizesText(failure.peer, failure.arrived, rank_, failure.expected), true);
    case TransferStatus::unreachable:
      if (std::ranges::find(left_, failure.peer) != left_.end())
        return fail(moecclRemoteError, failure.peer,
                    what + peer + " on " + hostOf(failure.peer) +
                        " has left: it has aborted or destroyed its communicators",
                    true);
      return fail(moecclRemoteError, failure.peer,
                  what + "the connection with " + peer + " on " + hostOf(failure.peer) +
                      " broke: " + failure.details,
                  true);
    case TransferStatus::cancelled:
    case TransferStatus::failed:
      return fail(moecclSystemError, rank_,
                  what + "rank " + std::to_string(rank_) + " could not carry out a transfer with " +
                      peer + ": " + failure.details,
                  true);
  }
}

void HostCommunicator::timedOut(const Run& run, std::chrono::milliseconds timeout) {
  const auto owner = std::ranges::find_if(plans_.all(), [&](const auto& plan) {
    return std::ranges::any_of(plan->slots, [&](const auto& slot) { return &slot->run == &run; });
  });
  const std::vector<int> awaited = run.awaitedPeers(), untaken = run.untakenPeers();
  const bool collective = dynamic_cast<const HostRun*>(&run) != nullptr;
  const std::vector<int>& named = awaited.empty() ? untaken : awaited;
  const std::vector<int> ends = collective ? awaited_.atTheEnd(rank_, run.neededPeers()) : named;
  std::string text = (owner == plans_.all().end() ? "messages" : textOf(**owner)) +
                     ": no progress for " + std::to_string(timeout.count()) + " ms";
  const auto* const messages = dynamic_cast<const MessageRun*>(&run);
  if (awaited.empty() && messages != nullptr && messages->waitsForAnybody())
    text += "; rank " + std::to_string(rank_) + " still waits for a message of any rank";
  else if (!named.empty())
    text += "; rank " + std::to_string(rank_) + " still waits for " + rankList(named) +
            (awaited.empty() ? " to take what it sends" : "") +
            (ends.empty() || ends == named ? "" : ", in the end for " + rankList(ends)) +
            ": stuck, in another collective, or not calling at all";
  fail(moecclTimeout, ends.size() == 1 ? ends[0] : -1, text, true);
}

bool HostCommunicator::accepts(const Notice& notice) {
  const auto source = std::ranges::find(transportRanks_, notice.source);
  if (source == transportRanks_.end()) return false;
  const auto rank = static_cast<int>(source - transportRanks_.begin());
  if (notice.result == moecclInProgress && notice.culprit >= 0)
    hearAwaited(rank, notice);
  else if (notice.result == moecclInProgress)
    answer(rank, notice);
  else if (notice.revokes != 0)
    revoked({rank, notice.text});
  else
    fail(moecclRemoteError, -1, "rank " + std::to_string(rank) + " reports: " + notice.text, false);
  return true;
}

void HostCommunicator::lost(const Loss& loss) {
  const auto at = std::ranges::find(transportRanks_, loss.rank);
  if (at == transportRanks_.end()) return;
  const int rank = static_cast<int>(at - transportRanks_.begin());
  failed_.push_back(rank);
  // One that has left may have done its part in all that is under way; calls that still need it
  // find out.
  if (loss.left)
    left_.push_back(rank);
  else
    fail(moecclRemoteError, rank,
         "rank " + std::to_string(rank) + " on " + hostOf(rank) + " is dead: " + loss.why, false);
}

const std::string& HostCommunicator::hostOf(int rank) const {
  return domain_->watch().hostOf(transportRanks_[rank]);
}

std::vector<int> HostCommunicator::failedRanks() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  return failed_;
}

void HostCommunicator::destroy() {
  ended_ = true;
  Domain::Lock lock(*domain_);
  const auto isUsed = [&] {
    return failure_ == moecclSuccess &&
           std::ranges::any_of(domain_->streams(), [&](Stream* s) { return s->uses(*this); });
  };
  domain_->wait(lock, [&] { return !isUsed(); });
  if (failure_ != moecclSuccess) awaitTransfers(lock);
  for (Stream* stream : domain_->streams()) stream->forget(*this);
  if (failure_ != moecclSuccess) {
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
  for (Stream* stream : domain_->streams()) stream->forget(*this);
  domain_->remove(*this, true, {});
}

void HostCommunicator::awaitTransfers(Domain::Lock& lock) {
  domain_->waitFor(lock, kGrace, [this] { return isIdle(); });
}

}  // namespace moeccl

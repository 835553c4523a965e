#include "src/comm/communicator.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "src/comm/stream.h"
#include "src/log.h"

namespace moeccl {
namespace {

// How long a failed call waits for its transfers to end before it leaves them to the domain.
constexpr std::chrono::milliseconds kGrace{500};
// How long a notice may take to leave when its sender leaves too.
constexpr std::chrono::milliseconds kFarewell{1000};

std::string listOf(std::span<const int> ranks) {
  constexpr std::size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return text;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Domain> domain, std::uint32_t number, int rank,
                           Topology topology, std::vector<int> transportRanks, Settings settings)
    : domain_(std::move(domain)),
      number_(number),
      rank_(rank),
      topology_(std::move(topology)),
      transportRanks_(std::move(transportRanks)),
      settings_(std::move(settings)) {
  Domain::Lock lock(*domain_);
  domain_->add(*this);
}

Communicator::~Communicator() {
  Domain::Lock lock(*domain_);
  for (Entry& entry : entries_)
    for (std::unique_ptr<HostRun>& run : entry.runs)
      if (!run->idle()) domain_->keep(std::move(run));
}

int Communicator::entryFor(Collective collective) {
  const Algorithm* fixed = settings_.algorithmFor(collective);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].collective == collective &&
        (fixed == nullptr || entries_[i].algorithm == fixed))
      return static_cast<int>(i);
  const Algorithm* algorithm = fixed != nullptr ? fixed : &firstAlgorithm(collective);
  try {
    auto plan = std::make_shared<PreparedPlan>(algorithm->plan(topology_, Parameters{}, rank_));
    entries_.push_back({collective, algorithm, std::move(plan), {}, {}});
    log(LogLevel::info, {rank_, ranks()}, "communicator %u: %s (%s), %d ops, %zu scratch blocks",
        number_, nameOf(entries_.back()).c_str(),
        fixed != nullptr ? "as configured" : "the default", entries_.back().plan->ops(),
        entries_.back().plan->plan().scratch.size());
  } catch (const NotOffered& e) {
    throw Error(moecclInvalidUsage, std::string(moeccl::nameOf(collective)) + "=" +
                                        std::string(algorithm->name) +
                                        " is not offered here: " + e.what());
  }
  return static_cast<int>(entries_.size()) - 1;
}

Communicator::Active Communicator::begin(const Call& call, std::uint32_t number) {
  throwIfFailed();
  const int index = entryFor(call.collective);
  Entry& entry = entries_[index];
  if (entry.idle.empty()) {
    entry.runs.push_back(std::make_unique<HostRun>(entry.plan));
    entry.idle.reserve(entry.runs.size());
    entry.idle.push_back(entry.runs.back().get());
  }
  HostRun& run = *entry.idle.back();
  entry.idle.pop_back();

  Operands operands;
  operands.input = static_cast<const std::byte*>(call.input);
  operands.output = static_cast<std::byte*>(call.output);
  operands.inputExtents = Extents::uniform(call.blockBytes);
  operands.outputExtents = Extents::uniform(call.blockBytes);
  operands.scratchExtents = Extents::uniform(call.blockBytes);
  operands.scratchBytes = call.blockBytes * entry.plan->plan().scratch.size();
  operands.datatype = call.datatype;
  Route route;
  route.transport = &domain_->transport();
  route.transportRank = transportRanks_;
  route.tag.comm = number_;
  route.tag.kind = static_cast<std::uint32_t>(call.collective);
  route.tag.call = number;
  route.tag.source = static_cast<std::uint32_t>(transportRanks_[rank_]);
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {rank_, ranks()}, "communicator %u: call %u: %s, %zu bytes per block",
        number_, number, nameOf(entry).c_str(), call.blockBytes);
  try {
    run.start(route, operands);
  } catch (const std::bad_alloc&) {
    // Peers are in this call already.
    entry.idle.push_back(&run);
    fail(moecclSystemError, rank_,
         nameOf(entry) + ": rank " + std::to_string(rank_) + " has no memory for " +
             std::to_string(operands.scratchBytes) + " bytes of scratch and its messages",
         true);
    throwIfFailed();
  }
  domain_->watch(*this, run);
  return {&run, index, number};
}

std::uint32_t Communicator::nextCall(Domain::Lock& lock) {
  domain_->wait(
      lock, [this] { return !pending_[calls_ % pending_.size()] || failure_ != moecclSuccess; });
  throwIfFailed();
  pending_[calls_ % pending_.size()] = true;
  return calls_++;
}

void Communicator::abandon(const std::string& why) {
  fail(moecclRemoteError, -1, "a call queued on a stream was dropped: " + why, true);
}

void Communicator::end(const Active& active) {
  release(active.number);
  domain_->unwatch(*active.run);
  Entry& entry = entries_[active.entry];
  if (active.run->failed()) {
    // A rank that gave up says why before it leaves: its reason beats "rank 3 is gone".
    domain_->hear();
    failFrom(*active.run, entry);
  }
  if (active.run->idle()) entry.idle.push_back(active.run);
  if (failure_ != moecclSuccess)
    throw Error(failure_, heard_ ? nameOf(entry) + ": " + failureText_ : failureText_);
}

void Communicator::run(const Call& call) {
  Domain::Lock lock(*domain_);
  throwIfFailed();
  const std::uint32_t number = nextCall(lock);
  Active active;
  try {
    active = begin(call, number);
  } catch (...) {
    release(number);
    throw;
  }
  HostRun& run = *active.run;
  domain_->wait(lock, [&] { return run.idle() || run.failed(); });
  if (run.failed()) domain_->waitFor(lock, kGrace, [&] { return run.idle(); });
  end(active);
}

void Communicator::throwIfFailed() const {
  if (failure_ != moecclSuccess) throw Error(failure_, failureText_);
}

moecclResult_t Communicator::asyncFailure() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  return failure_;
}

std::string Communicator::nameOf(const Entry& entry) const {
  return std::string(moeccl::nameOf(entry.collective)) + " (" + std::string(entry.algorithm->name) +
         ")";
}

void Communicator::fail(moecclResult_t result, int culprit, const std::string& text,
                        bool tellOthers) {
  if (failure_ != moecclSuccess) return;
  failure_ = result;
  failureText_ = text;
  heard_ = !tellOthers;
  log(LogLevel::warn, {rank_, ranks()}, "communicator %u: %s", number_, text.c_str());
  if (tellOthers) {
    Notice notice;
    notice.source = transportRanks_[rank_];
    notice.culprit = culprit < 0 ? -1 : transportRanks_[culprit];
    notice.result = result;
    notice.comm = number_;
    std::snprintf(notice.text, sizeof(notice.text), "%s", text.c_str());
    domain_->transport().notify(notice);
  }
  for (Entry& entry : entries_)
    for (const std::unique_ptr<HostRun>& run : entry.runs)
      if (!run->idle()) run->cancel();
}

void Communicator::failFrom(const HostRun& run, const Entry& entry) {
  const RunFailure& failure = run.failure();
  const std::string peer = "rank " + std::to_string(failure.peer);
  const std::string what = nameOf(entry) + ": ";
  switch (failure.status) {
    case TransferStatus::ok:
      return fail(moecclRemoteError, failure.peer,
                  what + peer + " sent " + std::to_string(failure.arrived) + " bytes where " +
                      std::to_string(failure.expected) +
                      " were expected; it called with another count or datatype than rank " +
                      std::to_string(rank_),
                  true);
    case TransferStatus::truncated:
      return fail(moecclRemoteError, failure.peer,
                  what + peer + " sent more than the " + std::to_string(failure.expected) +
                      " bytes that were expected; it called with another count or datatype than "
                      "rank " +
                      std::to_string(rank_),
                  true);
    case TransferStatus::unreachable:
      return fail(moecclRemoteError, failure.peer, what + peer + " is gone: " + failure.details,
                  true);
    case TransferStatus::cancelled:
    case TransferStatus::failed:
      return fail(moecclSystemError, failure.peer,
                  what + "a transfer with " + peer + " failed: " + failure.details, true);
  }
}

void Communicator::timedOut(HostRun& run) {
  const auto owner = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return std::ranges::any_of(entry.runs, [&](const auto& own) { return own.get() == &run; });
  });
  const std::vector<int> awaited = run.awaitedPeers();
  std::string text =
      nameOf(*owner) + ": no progress for " + std::to_string(settings_.timeoutMs) + " ms";
  if (awaited.empty())
    text += "; peers do not take what rank " + std::to_string(rank_) + " sends";
  else
    text += "; rank " + std::to_string(rank_) + " still waits for " + listOf(awaited) +
            ": stuck, in another collective, or not calling at all";
  fail(moecclTimeout, awaited.size() == 1 ? awaited[0] : -1, text, true);
}

bool Communicator::hears(const Notice& notice) {
  const auto source = std::ranges::find(transportRanks_, notice.source);
  if (source == transportRanks_.end()) return false;
  const std::string who = "rank " + std::to_string(source - transportRanks_.begin());
  fail(moecclRemoteError, -1, who + " reports: " + notice.text, false);
  return true;
}

void Communicator::destroy() {
  Domain::Lock lock(*domain_);
  const auto isUsed = [&] {
    return failure_ == moecclSuccess &&
           std::ranges::any_of(domain_->streams(), [&](Stream* s) { return s->uses(*this); });
  };
  domain_->wait(lock, [&] { return !isUsed(); });
  for (Stream* stream : domain_->streams()) stream->forget(*this);
  if (failure_ != moecclSuccess) {
    domain_->remove(*this, true, kFarewell);
    return;
  }
  const std::chrono::milliseconds forever{1000LL * 1000 * 1000};
  if (!domain_->remove(*this, false, timeout().count() < 0 ? forever : timeout()))
    throw Error(moecclTimeout, "rank " + std::to_string(rank_) + " waited " +
                                   std::to_string(settings_.timeoutMs) +
                                   " ms for all ranks to destroy their communicators, in vain; its "
                                   "own is freed");
}

void Communicator::abort() {
  Domain::Lock lock(*domain_);
  fail(moecclRemoteError, rank_, "rank " + std::to_string(rank_) + " aborted the communicator",
       true);
  for (Stream* stream : domain_->streams()) stream->forget(*this);
  domain_->remove(*this, true, kFarewell);
}

}  // namespace moeccl

// Whether all ranks make the same calls in the same order. Where they do not, messages come whose
// tag no receive has (src/exec/tag.h), from a rank that waits as much as this one. Then this rank
// asks: it tells the others what it has called. A rank that knows better fails the communicator,
// and says both.
#include <algorithm>
#include <chrono>
#include <vector>

#include "src/base/log.h"
#include "src/comm/host_communicator.h"

namespace moeccl {
namespace {

// How long a rank that is asked may take to answer: it must get to its progress().
constexpr std::chrono::milliseconds kAnswering{1000};
// Calls before the one at hand whose messages are looked for. A peer that is behind by more has not
// done its part in those that followed, so that they cannot be over here.
constexpr std::uint32_t kPast = 8;

// How far behind the last call messages are looked for that nobody has taken, and how many calls
// later they are judged at the latest. Together less than what is under way at once.
constexpr std::uint32_t kBehind = CallLog::kMost / 2, kJudgedAfter = CallLog::kMost / 4;
// Or so much later: a rank that is asked tells more.
constexpr std::chrono::milliseconds kJudging{20};
// A rank that waits for more of them says so of the first.
constexpr std::size_t kTold = 8;

}  // namespace

void HostCommunicator::compare(const HostRun& run, std::chrono::steady_clock::duration still) {
  Transport& transport = domain_->transport();
  Tag stray = 0;
  // A call that is over here has had all of its messages.
  for (std::uint32_t before = 1; before <= kPast; ++before) {
    const std::uint32_t number = run.call() - before;
    if (!calls_.isOver(number)) continue;
    CallRecord* const record = calls_.find(number);
    if (record == nullptr) break;
    if (transport.unexpected(makeTag({.comm = number_, .call = number}), kSameCall, &stray))
      ask(*record);
  }
  CallRecord* const record = calls_.find(run.call());
  if (record == nullptr) return;
  if (!run.findStray(&stray)) {
    // Two roots that each wait for the other's part send nothing. One of the ranks that call the
    // same asks: each begins at another time, and hears of those before.
    const std::chrono::milliseconds mine{300 + 37 * (rank_ % 16)};
    if (still < mine || record->wondered || run.awaitedPeers().empty()) return;
    record->wondered = true;
    return notify(moecclInProgress, -1, record->signature.text(), record);
  }
  if (record->asked == std::chrono::steady_clock::time_point{}) return ask(*record);
  if (std::chrono::steady_clock::now() < record->asked + kAnswering) return;
  // It does not answer, while it computes perhaps. It may be so far ahead that tags begin again,
  // but not where this rank lacks something of it: messages between two ranks keep their order.
  const std::optional<int> rank = rankAmong(transportRanks_, sourceOf(stray));
  if (!rank || !std::ranges::binary_search(run.awaitedPeers(), *rank)) return;
  fail(moecclRemoteError, *rank,
       "rank " + std::to_string(*rank) + " made another call than rank " + std::to_string(rank_) +
           ", which called " + record->signature.text() + ", and does not say which",
       true);
}

void HostCommunicator::lookBehind(std::uint32_t number) {
  ++looks_;
  Transport& transport = domain_->transport();
  std::vector<Suspect> found;
  Tag stray = 0;
  const bool any = transport.unexpected(makeTag({.comm = number_}), kAnyCall, &stray);
  for (int rank = 0; any && rank < ranks(); ++rank) {
    const auto source = static_cast<std::uint32_t>(transportRanks_[rank]);
    if (!transport.unexpected(makeTag({.comm = number_, .source = source}),
                              kAnyCall | tagBits(kSourceBits), &stray))
      continue;
    const auto known = std::ranges::find(suspects_, stray, &Suspect::tag);
    if (known != suspects_.end() && number - known->call <= CallLog::kMost) {
      found.push_back(std::move(*known));
      continue;
    }
    const auto behind = static_cast<std::uint32_t>((number - callOf(stray)) & tagBits(kCallBits));
    if (behind > kBehind || behind > number || !calls_.isOver(number - behind)) continue;
    CallRecord* const record = calls_.find(number - behind);
    found.push_back({stray, rank, number - behind, looks_,
                     record != nullptr ? record->signature.text() : "", Clock::now()});
    if (record != nullptr) ask(*record);
  }
  suspects_ = std::move(found);
}

// A call that began after the look has had a message of the suspect. That was sent after the
// suspect's, in a call that was not over, so that the suspect's is of no call 2^kCallBits later.
void HostCommunicator::judge(const Active& active) {
  for (const Suspect& suspect : suspects_) {
    const std::uint32_t since = active.number - suspect.call;
    if (active.looks < suspect.looks || since > CallLog::kMost) continue;
    if (since < kBehind + kJudgedAfter && Clock::now() < suspect.since + kJudging) continue;
    const bool receives = std::ranges::any_of(active.plan->plan->plan().ops, [&](const Op& op) {
      return op.kind == OpKind::recv && op.peer == suspect.rank;
    });
    Tag still = 0;
    if (!receives || !domain_->transport().unexpected(suspect.tag, ~Tag{0}, &still)) continue;
    const std::string rank = "rank " + std::to_string(suspect.rank);
    return fail(moecclRemoteError, suspect.rank,
                rank + " made another call than rank " + std::to_string(rank_) +
                    (suspect.text.empty() ? std::string() : ", which called " + suspect.text) +
                    "; all ranks must make the same calls, in the same order",
                true);
  }
}

void HostCommunicator::ask(CallRecord& record) {
  if (record.asked != std::chrono::steady_clock::time_point{}) return;
  record.asked = std::chrono::steady_clock::now();
  const std::string call = record.signature.text();
  log(LogLevel::info, {rank_, ranks()},
      "communicator %u: another rank's call %u is not this rank's, %s; asking", number_,
      record.number, call.c_str());
  notify(moecclInProgress, -1, call, &record);
}

void HostCommunicator::answer(int source, const Notice& question) {
  CallRecord* const record = calls_.find(question.call);
  if (record == nullptr) return;
  if (record->signature.digest() == question.digest) {
    record->wondered = true;
    return;
  }
  fail(moecclRemoteError, source,
       differentCalls(rank_, record->signature.text(), source, question.text), true);
}

void HostCommunicator::tellAwaited(const HostRun& run) {
  CallRecord* const record = calls_.find(run.call());
  const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  if (record == nullptr || now - record->told <= Awaited::kHolds) return;
  record->told = now;
  std::vector<int> awaited = run.neededPeers();
  awaited.resize(std::min(awaited.size(), kTold));
  for (const int rank : awaited) notify(moecclInProgress, rank, record->signature.text(), record);
}

void HostCommunicator::hearAwaited(int source, const Notice& notice) {
  const std::optional<int> whom = rankAmong(transportRanks_, notice.culprit);
  const CallRecord* const record = calls_.find(notice.call);
  if (!whom || (record != nullptr && record->signature.digest() != notice.digest)) return;
  awaited_.add(notice.call, source, *whom);
  forEachRun([&](const Run& run) {
    const auto* const collective = dynamic_cast<const HostRun*>(&run);
    if (collective != nullptr && !run.idle() && !run.failed()) tellAwaited(*collective);
  });
}

}  // namespace moeccl

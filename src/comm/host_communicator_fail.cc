// How a communicator on host memory fails, on all its ranks: for a run of its own, for a rank that
// is dead or has revoked it, or for a call that stands still.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/host_communicator.h"

namespace moeccl {

std::string HostCommunicator::sizesText(int sender, std::uint64_t sends, int receiver,
                                        std::uint64_t expects) {
  return "rank " + std::to_string(sender) + " sends " + std::to_string(sends) +
         " bytes where rank " + std::to_string(receiver) + " expects " + std::to_string(expects);
}

bool HostCommunicator::awaitsCause(const Run& run) {
  if (failure_.any() || (run.failure().status != TransferStatus::unreachable &&
                         run.failure().status != TransferStatus::failed))
    return false;
  const auto now = Clock::now();
  if (causeUntil_ == Clock::time_point{}) causeUntil_ = now + kCauseGrace;
  return now < causeUntil_;
}

void HostCommunicator::throwIfFailed() const { failure_.throwIfAny(); }

moecclResult_t HostCommunicator::asyncFailure() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  return failure_.result;
}

std::string HostCommunicator::failureText() {
  Domain::Lock lock(*domain_);
  return failure_.text;
}

void HostCommunicator::fail(moecclResult_t result, int culprit, const std::string& text,
                            bool tellOthers) {
  if (!failure_.note(result, text)) return;
  remote_ = !tellOthers;
  log(LogLevel::warn, {rank_, ranks()}, "communicator %u: %s", number_, text.c_str());
  if (tellOthers) notify(result, culprit, text, nullptr);
  forEachRun([](Run& run) {
    if (!run.idle()) run.cancel();
  });
}

void HostCommunicator::notify(moecclResult_t result, int culprit, const std::string& text,
                              const CallRecord* asked) {
  Notice notice = noticeOf(number_, result, text);
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
  if (failure_.revocation) return;
  Notice notice = noticeOf(number_, moecclRemoteError, text);
  notice.revokes = 1;
  domain_->watch().notify(notice);
  revoked({rank_, text});
}

void HostCommunicator::revoked(const Revocation& by) {
  if (failure_.revocation) return;
  failure_.revocation = by;
  fail(moecclRemoteError, -1, by.message(), false);
  for (HostCommunicator* part : parts_) part->revoked(by.ofWhole());
}

void HostCommunicator::dependOn(Communicator& whole) {
  Domain::Lock lock(*domain_);
  auto& it = dynamic_cast<HostCommunicator&>(whole);
  if (!it.ended_) it.parts_.push_back(this);
  if (it.failure_.revocation) revoked(it.failure_.revocation->ofWhole());
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
  std::string text = (owner == plans_.all().end() ? "messages" : (*owner)->name()) +
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
  const std::optional<int> source = rankAmong(transportRanks_, notice.source);
  if (!source) return false;
  if (notice.result == moecclInProgress && notice.culprit >= 0)
    hearAwaited(*source, notice);
  else if (notice.result == moecclInProgress)
    answer(*source, notice);
  else if (notice.revokes != 0)
    revoked({*source, notice.text});
  else
    fail(moecclRemoteError, -1, "rank " + std::to_string(*source) + " reports: " + notice.text,
         false);
  return true;
}

void HostCommunicator::lost(const Loss& loss) {
  const std::optional<int> rank = rankAmong(transportRanks_, loss.rank);
  if (!rank) return;
  failure_.lost.push_back(*rank);
  // One that has left may have done its part in all that is under way; calls that still need it
  // find out.
  if (loss.left)
    left_.push_back(*rank);
  else
    fail(moecclRemoteError, *rank, deathText(*rank, domain_->watch(), loss), false);
}

void HostCommunicator::forget(const Member& other) {
  std::erase_if(parts_, [&](const HostCommunicator* part) { return part == &other; });
}

const std::string& HostCommunicator::hostOf(int rank) const {
  return domain_->watch().hostOf(transportRanks_[rank]);
}

std::vector<int> HostCommunicator::failedRanks() {
  Domain::Lock lock(*domain_);
  domain_->poll();
  return failure_.lost;
}

}  // namespace moeccl

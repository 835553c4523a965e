// How a communicator on GPUs fails: for an error of NCCL, for a rank that is dead or has revoked
// it, or for ranks that have made different calls. What is enqueued is aborted then.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/comm/gpu_communicator.h"

namespace moeccl {
namespace {

// How long calls that are under way may take to return before they are interrupted.
constexpr std::chrono::milliseconds kReturning{1000};

bool mayBeADeath(moecclResult_t result) {
  return result == moecclRemoteError || result == moecclSystemError ||
         result == moecclInternalError;
}

}  // namespace

GpuCommunicator::~GpuCommunicator() {
  abort();
  // Calls that have been interrupted have returned by now.
  if (lanes_ != nullptr) NcclLanes::abort(std::move(lanes_), kReturning);
}

void GpuCommunicator::abort() {
  ended_ = true;
  endLanes(std::chrono::seconds(1));
  job_->remove(*this);
}

void GpuCommunicator::throwIfFailed() const {
  const std::lock_guard lock(mutex_);
  failure_.throwIfAny();
}

void GpuCommunicator::fail(moecclResult_t result, const std::string& text) {
  std::unique_lock lock(mutex_);
  // NCCL may be the first to find out that a rank is gone, but does not say which.
  if (mayBeADeath(result)) changed_.wait_for(lock, kCauseGrace, [this] { return failure_.any(); });
  note(result, text);
}

void GpuCommunicator::note(moecclResult_t result, const std::string& text) {
  if (!failure_.note(result, text)) return;
  changed_.notify_all();
  log(LogLevel::warn, {rank_, ranks()}, "%s", text.c_str());
}

void GpuCommunicator::lost(const Loss& loss) {
  const std::optional<int> rank = rankAmong(members_, loss.rank);
  const std::lock_guard lock(mutex_);
  if (!rank || std::ranges::find(failure_.lost, *rank) != failure_.lost.end()) return;
  failure_.lost.push_back(*rank);
  // One that has left may have done its part in all that is enqueued.
  if (loss.left) return;
  stuck_ = true;
  note(moecclRemoteError, deathText(*rank, job_->watch(), loss));
}

void GpuCommunicator::endWhatIsStuck() {
  {
    const std::lock_guard lock(mutex_);
    if (!stuck_) return;
  }
  endLanes({});
}

void GpuCommunicator::endLanes(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kReturning, [this] { return users_ == 0; })) {
    if (lanes_ != nullptr) lanes_->interrupt();
    return;
  }
  std::unique_ptr<NcclLanes> lanes = std::move(lanes_);
  lock.unlock();
  if (lanes != nullptr) NcclLanes::abort(std::move(lanes), limit);
}

moecclResult_t GpuCommunicator::asyncFailure() {
  {
    const Use use(*this);
    std::string text;
    if (use.lanes() != nullptr)
      if (const moecclResult_t result = use.lanes()->asyncError(&text); result != moecclSuccess)
        fail(result, "work on a stream of rank " + std::to_string(rank_) + " failed: " + text);
  }
  const std::lock_guard lock(mutex_);
  return failure_.result;
}

std::vector<int> GpuCommunicator::failedRanks() {
  const std::lock_guard lock(mutex_);
  return failure_.lost;
}

std::string GpuCommunicator::failureText() {
  const std::lock_guard lock(mutex_);
  return failure_.text;
}

void GpuCommunicator::revoke(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.revocation) return;
    revoked({rank_, text});
  }
  Notice notice = noticeOf(number_, moecclRemoteError, text);
  notice.revokes = 1;
  job_->watch().notify(notice);
  job_->look();
}

void GpuCommunicator::revoked(const Revocation& by) {
  if (failure_.revocation) return;
  failure_.revocation = by;
  stuck_ = true;
  note(moecclRemoteError, by.message());
}

void GpuCommunicator::dependOn(Communicator& whole) {
  job_->hold([&] { whole_ = &dynamic_cast<GpuCommunicator&>(whole); });
  job_->look();
}

void GpuCommunicator::followWhole() {
  if (whole_ == nullptr) return;
  std::optional<Revocation> by;
  {
    const std::lock_guard lock(whole_->mutex_);
    by = whole_->failure_.revocation;
  }
  if (!by) return;
  const std::lock_guard lock(mutex_);
  revoked(by->ofWhole());
}

}  // namespace moeccl

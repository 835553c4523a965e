// Whether all ranks make the same calls in the same order (gpu_calls.h). A rank whose call stands
// still tells the others what it has called. One that knows better fails the communicator, and says
// both.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "src/base/error.h"
#include "src/comm/gpu_communicator.h"

namespace moeccl {

bool GpuCommunicator::noteCall(CallSignature signature, void* stream) {
  const bool captured = gpu_->capture(stream) != 0;
  const std::lock_guard lock(mutex_);
  if (captured)
    calls_.stop();
  else
    calls_.add(std::move(signature), GpuCalls::Clock::now());
  return captured;
}

void GpuCommunicator::compareCalls() {
  const auto now = GpuCalls::Clock::now();
  std::uint32_t made = 0;
  bool stands = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != moecclSuccess || !calls_.isDue(now)) return;
    made = calls_.made();
    stands = users_ > 0;
  }
  if (!stands) try {
      const Use use(*this);
      // A thread of our own, so nobody needs the device that it had before (NcclLanes::useDevice).
      if (gpu_->device() != device_) gpu_->setDevice(device_);
      stands = use.lanes() != nullptr && !use.lanes()->isComplete();
    } catch (const Error&) {  // whoever calls next is told
    }
  GpuCalls::Question question;
  {
    const std::lock_guard lock(mutex_);
    if (!stands) return calls_.rest(made);
    question = calls_.ask(now);
  }
  notify(moecclInProgress, question);
}

void GpuCommunicator::notify(moecclResult_t result, const GpuCalls::Question& what) {
  Notice notice;
  notice.result = result;
  notice.comm = number_;
  notice.call = what.call;
  notice.digest = what.digest;
  std::snprintf(notice.text, sizeof notice.text, "%s", what.text.c_str());
  job_->watch().notify(notice);
}

bool GpuCommunicator::hear(const Notice& notice) {
  const auto at = std::ranges::find(members_, notice.source);
  if (notice.comm != number_ || at == members_.end()) return false;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (notice.revokes != 0) {
      revoked({static_cast<int>(at - members_.begin()), notice.text});
      return true;
    }
    if (notice.result != moecclInProgress) {
      text = notice.text;
    } else if (differs_) {
      text = failureText_;  // it has not been there when the others were told
    } else if (const auto own = calls_.otherThan(notice.call, notice.digest)) {
      const std::string first = "rank " + std::to_string(rank_) + " called " + *own,
                        second = "rank " + std::to_string(at - members_.begin()) + " called " +
                                 notice.text;
      text = first + ", " + second +
             (*own == notice.text ? ", and calls before these differ" : std::string()) +
             "; all ranks must make the same calls, in the same order";
    }
    if (text.empty()) return true;
    stuck_ = differs_ = true;
    note(moecclRemoteError, text);
  }
  if (notice.result == moecclInProgress) notify(moecclRemoteError, {0, 0, text});
  return true;
}

}  // namespace moeccl

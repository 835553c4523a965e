// Whether all ranks make the same calls in the same order (gpu_calls.h). A rank whose call stands
// still tells the others what it has called. One that knows better fails the communicator, and says
// both.
#include <algorithm>
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
    if (failure_.any() || !calls_.isDue(now)) return;
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
  Notice notice = noticeOf(number_, result, what.text);
  notice.call = what.call;
  notice.digest = what.digest;
  job_->watch().notify(notice);
}

bool GpuCommunicator::hear(const Notice& notice) {
  const std::optional<int> source = rankAmong(members_, notice.source);
  if (notice.comm != number_ || !source) return false;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (notice.revokes != 0) {
      revoked({*source, notice.text});
      return true;
    }
    if (notice.result != moecclInProgress) {
      text = notice.text;
    } else if (differs_) {
      text = failure_.text;  // it has not been there when the others were told
    } else if (const auto own = calls_.otherThan(notice.call, notice.digest)) {
      text = differentCalls(rank_, *own, *source, notice.text,
                            *own == notice.text ? ", and calls before these differ" : "");
    }
    if (text.empty()) return true;
    stuck_ = differs_ = true;
    note(moecclRemoteError, text);
  }
  if (notice.result == moecclInProgress) notify(moecclRemoteError, {0, 0, text});
  return true;
}

}  // namespace moeccl

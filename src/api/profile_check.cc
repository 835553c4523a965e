#include "src/api/profile_check.h"

#include "src/text.h"

namespace moeccl {

std::string ProfileCheck::add(double predicted, double seconds) {
  if (warned_ || !(predicted > 0)) return {};
  slow_ += seconds >= kFactor * predicted ? 1 : 0;
  fast_ += seconds <= predicted / kFactor ? 1 : 0;
  predicted_ += predicted;
  seconds_ += seconds;
  if (++calls_ < kCalls) return {};
  std::string text;
  if (slow_ >= kOff || fast_ >= kOff)
    text = stringf(
        "the last %d calls took %.2g ms each, and %.2g by the profile; is it of this network? "
        "moeccl-fit measures it%s",
        kCalls, seconds_ / kCalls * 1e3, predicted_ / kCalls * 1e3,
        slow_ >= kOff ? " (or other ranks come late to every call)" : "");
  warned_ = !text.empty();
  calls_ = slow_ = fast_ = 0;
  predicted_ = seconds_ = 0;
  return text;
}

}  // namespace moeccl

// Counts calls that are slower or faster than predicted by kFactor, and warns once where kOff of
// kCalls are.
#include "src/comm/profile_check.h"

#include "src/base/text.h"

namespace moeccl {

std::string ProfileCheck::add(double predicted, double seconds) {
  if (warned_ || !(predicted > 0)) return {};
  if (seconds >= kFactor * predicted) slow_.add(predicted, seconds);
  if (seconds <= predicted / kFactor) fast_.add(predicted, seconds);
  if (++calls_ < kCalls) return {};
  std::string text;
  for (const Calls* off : {&slow_, &fast_})
    if (off->count >= kOff)
      text = stringf(
          "%d of the last %d calls took %.2g ms in the mean, and %.2g by the profile; is it of "
          "this "
          "network? moeccl-fit measures it%s",
          off->count, kCalls, off->seconds / off->count * 1e3, off->predicted / off->count * 1e3,
          off == &slow_ ? " (or other ranks come late to every call)" : "");
  warned_ = !text.empty();
  slow_ = fast_ = {};
  calls_ = 0;
  return text;
}

}  // namespace moeccl

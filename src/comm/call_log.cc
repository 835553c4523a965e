// Keeps the last kMost calls in a ring.
#include "src/comm/call_log.h"

namespace moeccl {

bool CallLog::hasRoom() const { return at(next_).over; }

std::uint32_t CallLog::add(const CallSignature& signature) {
  at(next_) = {signature, next_, true, false, {}, false, {}};
  return next_++;
}

CallRecord* CallLog::find(std::uint32_t number) {
  CallRecord& record = at(number);
  return record.made && record.number == number ? &record : nullptr;
}

bool CallLog::isOver(std::uint32_t number) {
  if (static_cast<std::int32_t>(next_ - number) <= 0) return false;
  const CallRecord* record = find(number);
  return record == nullptr || record->over;
}

}  // namespace moeccl

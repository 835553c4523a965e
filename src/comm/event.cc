// Waits for an event, or asks whether it is complete, by progress of the domain.
#include "src/comm/event.h"

#include "src/base/error.h"

namespace moeccl {
namespace {

bool isComplete(const Event::Place& place) {
  if (place.over && place.result != moecclSuccess) throw Error(place.result, place.text);
  return place.over;
}

}  // namespace

bool Event::query() {
  if (place_ == nullptr) return true;
  Domain::Lock lock(*domain_);
  if (!place_->over && !domain_->poll()) domain_->checkTimeouts();
  return isComplete(*place_);
}

void Event::synchronize() {
  if (place_ == nullptr) return;
  Domain::Lock lock(*domain_);
  domain_->wait(lock, [&] { return place_->over; });
  isComplete(*place_);
}

void Event::setCallback(std::function<void(moecclResult_t)> callback) {
  moecclResult_t result = moecclSuccess;
  {
    std::optional<Domain::Lock> lock;
    if (place_ != nullptr) lock.emplace(*domain_);
    if (std::exchange(place_ == nullptr ? called_ : place_->hasCallback, true))
      throw Error(moecclInvalidUsage,
                  "event has a callback already; it takes another when it is recorded again");
    if (place_ != nullptr && !place_->over) {
      place_->callback = std::move(callback);
      return;
    }
    if (place_ != nullptr) result = place_->result;
  }
  callback(result);
}

}  // namespace moeccl

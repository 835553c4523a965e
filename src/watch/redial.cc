// Tries to connect again, with a higher index each time, until the peer answers or its time is
// over.
#include "src/watch/redial.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace moeccl {
namespace {

// Time for a host to answer one try. TCP itself would ask again only after a second.
constexpr std::int64_t kTryMs = 300;
constexpr std::int64_t kPauseMs = 50;
// TCP's probes come at this interval (breakWhenSilent).
constexpr std::int64_t kProbeMs = 1000;

}  // namespace

void Redial::begin(std::int64_t silentMs) {
  running_ = true;
  next_ = Clock::now();
  until_ = next_;
  extend(silentMs);
}

void Redial::extend(std::int64_t silentMs) {
  const std::int64_t left = limits_.detectionMs + kProbeMs - silentMs;
  until_ = std::max(until_, afterMs(limits_.detectionMs < 0 ? -1 : std::max(left, kTryMs)));
}

void Redial::stop() {
  running_ = false;
  dial_.reset();
}

Redial::Result Redial::step() {
  if (!dial_) {
    if (!isPast(next_)) return Result::running;
    do ++index_;
    while ((index_ % 2 == 1) != higher_);
    dial_.emplace(secret_, rank_, index_, to_, ControlDial::Limits{kTryMs, limits_.doubtMs});
  }
  const bool connected = dial_->state() == ControlDial::State::greeting;
  pollfd polled = dial_->wanted();
  switch (dial_->advance(poll(&polled, 1, 0) > 0)) {
    case ControlDial::State::connecting:
    case ControlDial::State::greeting:
      return Result::running;
    case ControlDial::State::welcome:
      return Result::made;
    case ControlDial::State::closed:
      return giveUp(false);
    case ControlDial::State::failed:
      break;
  }
  if (dial_->error() == ECONNREFUSED || dial_->error() == EPROTO) return Result::ended;
  if (connected) extend(silentMs(dial_->socket()));
  return giveUp(true);
}

// Gives a try up. The next one is due after a pause, unless the time is over.
Redial::Result Redial::giveUp(bool silent) {
  dial_.reset();
  next_ = afterMs(kPauseMs);
  if (!isPast(until_)) return Result::running;
  return silent ? Result::silent : Result::ended;
}

Socket Redial::take() {
  Socket socket = dial_->take();
  stop();
  return socket;
}

bool Redial::yieldsTo(std::uint32_t index) {
  if (index <= index_) return false;
  index_ = index;
  stop();
  return true;
}

}  // namespace moeccl

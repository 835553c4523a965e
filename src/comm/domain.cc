// How threads take turns at progress; what news, losses and timeouts do to communicators; and which
// numbers of communicators are free.
#include "src/comm/domain.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/bootstrap/signals.h"

namespace moeccl {
namespace {

// The transport wakes a sleeper; this bounds what a missed wake-up or a timeout check can cost.
constexpr int kSleepMilliseconds = 100;
// The same where there is something to call after each look.
constexpr int kIdleSleepMilliseconds = 1;
// How often a run that does not advance looks for ranks that have made another call.
constexpr std::chrono::milliseconds kComparing{30};
// How long before a run is given up ranks say for whom they wait; a quarter of its time at most.
constexpr std::chrono::milliseconds kTelling{300};
// Polls between two looks at the clock.
constexpr unsigned kPollsPerLook = 1 << 14;
// The most rounds of progress before calls fail that need a lost rank. Others that go on sending
// must not prolong that.
constexpr int kLastRounds = 1000;
// The latest notices kept for communicators to come. Most are of groups that this rank is not in.
constexpr std::size_t kEarlyNotices = 16;

thread_local bool isProgressThread = false;

}  // namespace

void Domain::Lock::acquire() {
  if (lock_.try_lock()) return;
  ++domain_.contenders_;
  domain_.transport_->wake();
  lock_.lock();
  --domain_.contenders_;
}

bool Domain::Lock::callDue() {
  if (domain_.due_.empty()) return false;
  const std::vector<std::function<void()>> due = std::move(domain_.due_);
  domain_.due_.clear();
  lock_.unlock();
  for (const std::function<void()>& call : due) call();
  return true;
}

bool Domain::Lock::yield() {
  if (domain_.contenders_ == 0) return false;
  lock_.unlock();
  while (domain_.contenders_ > 0) sched_yield();
  lock_.lock();
  return true;
}

Domain::Domain(std::unique_ptr<Transport> transport, std::unique_ptr<Watch> watch,
               std::unique_ptr<Trace> trace, bool progressThread, Idle idle, Waiting waiting)
    : transport_(std::move(transport)),
      watch_(std::move(watch)),
      trace_(std::move(trace)),
      idle_(idle),
      waiting_(std::move(waiting)) {
  watch_->onNews([this] { transport_->wake(); });
  if (!progressThread) return;
  const SignalsBlocked blocked;
  try {
    progressThread_ = std::thread([this] { progressLoop(); });
  } catch (const std::system_error& error) {
    throw Error(moecclSystemError, std::string("cannot start a progress thread: ") + error.what());
  }
}

Domain::~Domain() {
  if (!progressThread_.joinable()) return;
  {
    Lock lock(*this);
    stop_ = true;
  }
  progressThread_.join();
}

void Domain::progressLoop() {
  isProgressThread = true;
  Lock lock(*this);
  for (Waiter self; !stop_;) {
    lock.yield();
    if (!stop_ && !hasWorkOnStreams()) {
      sleeps_ = true;
      wakeUp_.wait(lock.lock_, [this] { return !sleeps_; });
    } else if (!stop_) {
      waitOnce(lock, self);
    }
  }
  announce();
}

bool Domain::hasWorkOnStreams() const { return std::ranges::any_of(streams_, &Work::hasWork); }

void Domain::wakeProgressThread() {
  if (!sleeps_ || !(stop_ || hasWorkOnStreams())) return;
  sleeps_ = false;
  wakeUp_.notify_one();
}

void Domain::waitOnce(Lock& lock, Waiter& self) {
  if (leading_) {
    follow(lock);
    self.looks = 1;
    return callIdle(lock, self);
  }
  {
    // Whatever is thrown while leading, the others must not follow a leader who is gone.
    struct Leadership {
      bool& leading;
      explicit Leadership(bool& flag) : leading(flag) { leading = true; }
      ~Leadership() { leading = false; }
    } const leadership(leading_);
    self.looks = lead(lock, self.looks);
  }
  if (lock.callDue()) lock.acquire();
  callIdle(lock, self);
}

// Others may lead meanwhile: the function may take long, and wait for what they hold.
void Domain::callIdle(Lock& lock, Waiter& self) {
  if (idle_.function == nullptr || isProgressThread) return;
  // A look that found something may find more, and the function may give the core away.
  if (idle_.every.count() == 0 && self.looks == 0) return;
  if (idle_.every.count() > 0) {
    const Clock::time_point now = Clock::now();
    // Most waits end before anybody asks for the time.
    if (self.idleAt == Clock::time_point{}) self.idleAt = now;
    if (now < self.idleAt + idle_.every) return;
    self.idleAt = now;
  }
  announce();
  wakeProgressThread();
  lock.lock_.unlock();
  idle_.function(idle_.context);
  lock.acquire();
}

int Domain::longestSleep() const {
  if (idle_.function == nullptr) return kSleepMilliseconds;
  return std::clamp(static_cast<int>(idle_.every.count()), kIdleSleepMilliseconds,
                    kSleepMilliseconds);
}

int Domain::lead(Lock& lock, int looks) {
  if (poll()) {
    announce();
    return 0;
  }
  // The progress thread lets them in when it does not lead.
  if (isProgressThread ? contenders_ > 0 : lock.yield()) return 0;
  if (!due_.empty()) return 0;
  if (!waiting_.sleeps(looks)) {
    waiting_.yield(looks);
    return looks + 1;
  }
  checkTimeouts();
  transport_->wait(longestSleep());
  waiting_.slept();
  return looks;
}

void Domain::follow(Lock& lock) {
  ++followers_;
  {
    std::unique_lock advanced(advancedMutex_);
    const std::uint64_t seen = advances_;
    lock.lock_.unlock();
    advanced_.wait_for(advanced, std::chrono::milliseconds(longestSleep()),
                       [&] { return advances_ != seen; });
  }
  lock.acquire();
  --followers_;
}

void Domain::announce() {
  if (followers_ == 0) return;
  {
    const std::lock_guard advanced(advancedMutex_);
    ++advances_;
  }
  advanced_.notify_all();
}

bool Domain::poll() {
  // Also while other work advances all the time.
  if (++polls_ % kPollsPerLook == 0) checkTimeouts();
  // News first: whoever has revoked a communicator may have freed what its messages hold.
  bool anything = takeNews();
  anything |= transport_->progress();
  for (Member* communicator : communicators_) anything |= communicator->receiveWaiting();
  for (std::size_t i = 0; i < streams_.size(); ++i) anything |= streams_[i]->advance();
  return anything;
}

bool Domain::advance() {
  Lock lock(*this);
  // Others that go on sending must not keep it here.
  int rounds = 0;
  while (rounds < kLastRounds && poll()) ++rounds;
  return rounds > 0;
}

bool Domain::takeNews() {
  const std::uint64_t news = watch_->news();
  if (news == std::exchange(news_, news)) return false;
  std::vector<Watch::News> others;
  for (Watch::News next; watch_->next(&next);) {
    const auto* notice = std::get_if<Notice>(&next);
    if (notice != nullptr && notice->revokes != 0)
      deliver(*notice);
    else
      others.push_back(std::move(next));
  }
  if (others.empty()) return true;
  letArrive();
  for (const Watch::News& each : others)
    std::visit([this](const auto& what) { deliver(what); }, each);
  return true;
}

// What ranks have sent before they ended or failed may complete what is under way.
void Domain::letArrive() {
  for (int i = 0; i < kLastRounds && transport_->progress(); ++i) {
  }
}

void Domain::watch(Member& communicator, Run& run, HostRun* collective,
                   std::chrono::milliseconds timeout) {
  watched_.push_back({&communicator, &run, collective, timeout, run.unfinished(), {}, {}});
}

void Domain::unwatch(const Run& run) {
  std::erase_if(watched_, [&](const Watched& watched) { return watched.run == &run; });
}

void Domain::checkTimeouts() {
  // Only time during which somebody polled counts: a caller who computes for an hour between two
  // queries has not waited for an hour.
  const auto now = Clock::now();
  const auto passed =
      std::min<Clock::duration>(now - lastLook_, 2 * std::chrono::milliseconds(kSleepMilliseconds));
  lastLook_ = now;
  dropForTheFailed();
  for (Watched& watched : watched_) {
    if (watched.unfinished != watched.run->unfinished()) {
      watched.unfinished = watched.run->unfinished();
      watched.still = watched.compared = {};
      continue;
    }
    watched.still += passed;
    if (watched.collective != nullptr && watched.still >= watched.compared + kComparing &&
        !watched.run->failed()) {
      watched.compared = watched.still;
      watched.communicator->compare(*watched.collective, watched.still);
      if (watched.run->failed()) return;
    }
    const std::chrono::milliseconds limit = watched.timeout;
    if (watched.collective != nullptr && limit.count() >= 0 && !watched.run->failed() &&
        watched.still >= limit - std::min(limit / 4, kTelling))
      watched.communicator->tellAwaited(*watched.collective);
    if (limit.count() < 0 || watched.still < limit || watched.run->failed()) continue;
    watched.communicator->timedOut(*watched.run, limit);
    return;  // the list may have changed; the others are found in the next round
  }
}

void Domain::lose(const Loss& loss) {
  letArrive();
  if (loss.left)
    transport_->leave(loss.rank, loss.why);
  else
    transport_->lose(loss.rank, loss.why);
}

void Domain::deliver(const Loss& loss) {
  lose(loss);
  losses_.push_back(loss);
  for (Member* communicator : communicators_) communicator->lost(loss);
}

void Domain::deliver(const Notice& notice) {
  if (notice.comm >= numbers_.size()) return;
  for (Member* communicator : communicators_)
    if (communicator->number() == notice.comm && communicator->accepts(notice)) return;
  if (notice.result == moecclInProgress) return;  // about calls that this rank has not made
  if (numbers_[notice.comm] >= NumberState::used) return;
  if (early_.size() == kEarlyNotices) early_.pop_front();
  early_.push_back(notice);
}

int Domain::firstFreeNumber(int from) const {
  const auto start = numbers_.begin() + from;
  auto free = std::find(start, numbers_.end(), NumberState::free);
  if (free == numbers_.end()) {
    free = std::find(numbers_.begin(), start, NumberState::free);
    if (free == start) return -1;
  }
  return static_cast<int>(free - numbers_.begin());
}

bool Domain::reserve(int number) {
  NumberState& state = numbers_[static_cast<std::size_t>(number)];
  if (state != NumberState::free) return false;
  state = NumberState::reserved;
  return true;
}

void Domain::add(Member& communicator) {
  if (stop_)
    throw Error(moecclRemoteError,
                "rank " + std::to_string(watch_->rank()) +
                    " has aborted or destroyed all its communicators while this one was made");
  communicators_.push_back(&communicator);
  numbers_[communicator.number()] = NumberState::used;
  // Why a communicator has failed was told before those who knew left.
  std::erase_if(early_, [&](const Notice& notice) {
    return communicator.number() == notice.comm && communicator.accepts(notice);
  });
  for (const Loss& loss : losses_) communicator.lost(loss);
}

bool Domain::remove(Member& communicator, bool abrupt, std::chrono::milliseconds limit) {
  std::erase(communicators_, &communicator);
  for (Member* other : communicators_) other->forget(communicator);
  const bool inOrder = communicator.failure() == moecclSuccess && !communicator.wasShrunk();
  numbers_[communicator.number()] = inOrder ? NumberState::free : NumberState::failed;
  anyFailed_ |= !inOrder;
  std::erase_if(watched_,
                [&](const Watched& watched) { return watched.communicator == &communicator; });
  if (!communicators_.empty()) return true;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  stop_ = true;
  if (trace_ != nullptr && !trace_->write())
    log(LogLevel::warn, {}, "MOECCL_TRACE: cannot write %s: %s", trace_->path().c_str(),
        std::strerror(errno));
  transport_->whileClosing = [this] { forgetTheLost(); };
  const bool closedInOrder =
      transport_->close(abrupt, static_cast<int>(std::min<std::int64_t>(limit.count(), kMost)));
  watch_->leave();
  return closedInOrder;
}

bool Domain::drop(std::uint32_t number) {
  std::erase_if(dropped_, [](const Dropped& each) { return each.over; });
  const Tag first = makeTag({.comm = number}), anyOfIt = ~tagBits(kBitsBelowComm);
  for (Tag stray; transport_->unexpected(first, anyOfIt, &stray);) {
    Dropped& message = dropped_.emplace_back();
    message.done = [](Transfer* self, TransferStatus, std::size_t) {
      static_cast<Dropped*>(self)->over = true;
    };
    transport_->recv(sourceOf(stray), stray, nullptr, 0, &message);
  }
  return std::ranges::all_of(dropped_, &Dropped::over);
}

void Domain::dropForTheFailed() {
  Tag any = 0;
  if (!anyFailed_ || !transport_->unexpected(0, 0, &any)) return;
  for (std::size_t number = 0; number < numbers_.size(); ++number)
    if (numbers_[number] == NumberState::failed) drop(static_cast<std::uint32_t>(number));
}

// The end waits for whoever lives and has not left: one that has aborted does not come.
void Domain::forgetTheLost() {
  if (const std::uint64_t news = watch_->news(); news == std::exchange(news_, news)) return;
  for (Watch::News next; watch_->next(&next);)
    if (const auto* loss = std::get_if<Loss>(&next); loss != nullptr) lose(*loss);
}

void Domain::add(Work& stream) { streams_.push_back(&stream); }

void Domain::remove(Work& stream) { std::erase(streams_, &stream); }

}  // namespace moeccl

// Begins the calls at the front of the queue, ends them together, and drops the rest where one
// fails.
#include "src/comm/stream.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace moeccl {
namespace {

// Owns the run of a call of a route.
std::shared_ptr<const void> planOf(const Call& call) {
  return call.rows() == nullptr ? nullptr : call.rows()->plan;
}

}  // namespace

Stream::Stream(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {
  Domain::Lock lock(*domain_);
  domain_->add(*this);
}

Stream::~Stream() {
  Domain::Lock lock(*domain_);
  domain_->remove(*this);
  leaving_.clear();
  settleFailed();
}

void Stream::throwIfFailed() const {
  if (failure_ != moecclSuccess) throw Error(failure_, failureText_);
}

void Stream::requireRelative(HostCommunicator& communicator) const {
  if (&communicator.domain() != domain_.get())
    throw Error(moecclInvalidArgument,
                "stream belongs to a communicator that is no relative of comm; make one with "
                "moecclStreamCreate(comm, ...)");
}

void Stream::enqueue(HostCommunicator& communicator, Call call) {
  requireRelative(communicator);
  Domain::Lock lock(*domain_);
  domain_->takeNews();
  throwIfFailed();
  communicator.throwIfFailed();
  const std::uint32_t number = communicator.nextCall(call, lock);
  if (failure_ != moecclSuccess) {  // while that waited
    communicator.abandon(failureText_);
    throwIfFailed();
  }
  queue_.push_back({&communicator, std::move(call), number, false, {}, {}});
  advance();
}

void Stream::enqueueTogether(std::vector<Queued> calls) {
  Domain::Lock lock(*domain_);
  domain_->takeNews();
  if (failure_ != moecclSuccess) {
    for (const Queued& each : calls) each.communicator->abandon(failureText_);
    throwIfFailed();
  }
  bool joined = false;
  for (Queued& each : calls) {
    queue_.push_back({each.communicator, std::move(each.call), each.number, joined, {}, {}});
    joined = true;
  }
  advance();
}

void Stream::record(Event& event) {
  Domain::Lock lock(*domain_);
  advance();
  if (failure_ == moecclSuccess && empty()) return event.record(nullptr, nullptr);
  auto place = std::make_shared<Event::Place>();
  event.record(domain_, place);
  if (failure_ != moecclSuccess) {
    failing_.push_back(std::move(place));
    settleFailed();
    return;
  }
  Item item;
  item.recorded = std::move(place);
  queue_.push_back(std::move(item));
  advance();
}

void Stream::wait(const Event& event) {
  if (event.place() == nullptr) return;
  if (event.domain() != domain_)
    throw Error(moecclInvalidArgument,
                "event was recorded on a stream of a communicator that is no relative of this "
                "stream's");
  Domain::Lock lock(*domain_);
  throwIfFailed();
  Item item;
  item.awaited = event.place();
  queue_.push_back(std::move(item));
  advance();
}

bool Stream::advance() {
  bool anything = settleFailed();
  while (!queue_.empty() && failure_ == moecclSuccess) {
    try {
      Item& front = queue_.front();
      if (front.recorded != nullptr) {
        front.recorded->end(*domain_, moecclSuccess, "");
        queue_.pop_front();
      } else if (front.awaited != nullptr) {
        if (!front.awaited->over) return anything;
        if (front.awaited->result != moecclSuccess)
          throw Error(front.awaited->result, front.awaited->text);
        queue_.pop_front();
      } else {
        if (running_.empty()) begin();
        if (!endRunning()) return anything;
      }
      anything = true;
    } catch (const Error& e) {
      fail(e.result(), e.what());
    } catch (const std::bad_alloc&) {
      fail(moecclSystemError, "out of memory");
    } catch (const std::exception& e) {
      fail(moecclInternalError, e.what());
    }
  }
  return anything;
}

void Stream::begin() {
  do {
    Item& item = queue_[running_.size()];
    running_.push_back({item.communicator->begin(item.call, item.number)});
  } while (running_.size() < queue_.size() && queue_[running_.size()].joined);
}

bool Stream::endRunning() {
  bool all = true;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Running& running = running_[i];
    HostCommunicator& communicator = *queue_[i].communicator;
    while (!running.over && communicator.isOver(running.active))
      running.over = !communicator.proceed(queue_[i].call, &running.active);
    all &= running.over;
  }
  if (!all) return false;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const HostCommunicator::Active& active = running_[i].active;
    queue_[i].communicator->end(queue_[i].call, active);
  }
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(running_.size()));
  running_.clear();
  return true;
}

bool Stream::query() {
  Domain::Lock lock(*domain_);
  if (!domain_->poll()) domain_->checkTimeouts();
  // Whoever is told of a failure may free the buffers.
  if (failure_ != moecclSuccess && leaves() && Clock::now() < leavingUntil_) return false;
  throwIfFailed();
  return empty();
}

void Stream::synchronize() {
  Domain::Lock lock(*domain_);
  domain_->wait(lock, [&] { return empty() || failure_ != moecclSuccess; });
  if (failure_ != moecclSuccess) domain_->waitFor(lock, kGrace, [&] { return !leaves(); });
  throwIfFailed();
}

bool Stream::uses(const Domain::Member& communicator) const {
  return std::ranges::any_of(queue_,
                             [&](const Item& item) { return item.communicator == &communicator; });
}

void Stream::forget(const Domain::Member& communicator) {
  if (uses(communicator)) {
    if (failure_ == moecclSuccess) {
      failure_ = moecclInvalidUsage;
      failureText_ = "the communicator of queued work was aborted or had failed";
      if (communicator.failure() != moecclSuccess) failure_ = communicator.failure();
    }
    abandonAll();
  }
  // Its runs go with it.
  std::erase_if(leaving_, [&](const Leaving& each) { return each.communicator == &communicator; });
  settleFailed();
}

bool Stream::leaves() const {
  return std::ranges::any_of(leaving_, [](const Leaving& each) { return !each.run->idle(); });
}

void Stream::fail(moecclResult_t result, const char* text) {
  failure_ = result;
  failureText_ = text;
  abandonAll();
}

void Stream::abandonAll() {
  leavingUntil_ = Clock::now() + kGrace;
  for (std::size_t i = 0; i < running_.size(); ++i)
    leaving_.push_back({queue_[i].communicator, &running_[i].active.run(), planOf(queue_[i].call)});
  running_.clear();
  for (Item& item : queue_) {
    if (item.communicator != nullptr) item.communicator->abandon(failureText_);
    if (item.recorded != nullptr) failing_.push_back(std::move(item.recorded));
  }
  queue_.clear();
}

bool Stream::settleFailed() {
  if (failing_.empty() || (leaves() && Clock::now() < leavingUntil_)) return false;
  const moecclResult_t result = failure_ == moecclSuccess ? moecclInvalidUsage : failure_;
  for (const std::shared_ptr<Event::Place>& place : std::exchange(failing_, {}))
    place->end(*domain_, result,
               failure_ == moecclSuccess ? "the stream was destroyed" : failureText_);
  return true;
}

}  // namespace moeccl

#include "src/comm/stream.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace moeccl {
Stream::Stream(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {
  Domain::Lock lock(*domain_);
  domain_->add(*this);
}

Stream::~Stream() {
  Domain::Lock lock(*domain_);
  domain_->remove(*this);
}

void Stream::throwIfFailed() const {
  if (failure_ != moecclSuccess) throw Error(failure_, failureText_);
}

void Stream::enqueue(HostCommunicator& communicator, Call call) {
  if (&communicator.domain() != domain_.get())
    throw Error(moecclInvalidArgument,
                "stream belongs to a communicator that is no relative of comm; make one with "
                "moecclStreamCreate(comm, ...)");
  Domain::Lock lock(*domain_);
  domain_->hear();
  throwIfFailed();
  communicator.throwIfFailed();
  const std::uint32_t number = communicator.nextCall(call, lock);
  if (failure_ != moecclSuccess) {  // while that waited
    communicator.abandon(failureText_);
    throwIfFailed();
  }
  queue_.push_back({&communicator, std::move(call), number});
  advance();
}

bool Stream::advance() {
  bool anything = false;
  while (!queue_.empty() && failure_ == moecclSuccess) {
    Item& item = queue_.front();
    try {
      if (active_.slot == nullptr) {
        active_ = item.communicator->begin(item.call, item.number);
        anything = true;
      }
      if (!item.communicator->isOver(active_)) return anything;
      if (item.communicator->proceed(item.call, &active_)) continue;
      anything = true;
      item.communicator->end(active_);
      active_ = {};
      queue_.pop_front();
    } catch (const Error& e) {
      failure_ = e.result();
      failureText_ = e.what();
      abandonAll();
    } catch (const std::bad_alloc&) {
      failure_ = moecclSystemError;
      failureText_ = "out of memory";
      abandonAll();
    } catch (const std::exception& e) {
      failure_ = moecclInternalError;
      failureText_ = e.what();
      abandonAll();
    }
  }
  return anything;
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

bool Stream::uses(const HostCommunicator& communicator) const {
  return std::ranges::any_of(queue_,
                             [&](const Item& item) { return item.communicator == &communicator; });
}

void Stream::forget(const HostCommunicator& communicator) {
  if (uses(communicator)) {
    if (failure_ == moecclSuccess) {
      failure_ = moecclInvalidUsage;
      failureText_ = "the communicator of queued work was aborted or had failed";
      if (communicator.failure() != moecclSuccess) failure_ = communicator.failure();
    }
    abandonAll();
  }
  if (leavingFrom_ == &communicator) leaving_ = nullptr;  // its slots go with it
}

bool Stream::leaves() const { return leaving_ != nullptr && !leaving_->run.idle(); }

void Stream::abandonAll() {
  leaving_ = active_.slot;
  leavingUntil_ = Clock::now() + kGrace;
  leavingFrom_ = queue_.empty() ? nullptr : queue_.front().communicator;
  active_ = {};
  for (const Item& item : queue_) item.communicator->abandon(failureText_);
  queue_.clear();
}

}  // namespace moeccl

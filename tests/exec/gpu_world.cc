// Runs what is queued on the doubles' streams in a random order, and finds races.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/exec/gpu_double.h"

namespace moeccl::test {
namespace {

bool overlap(const GpuWorld::Range& a, const GpuWorld::Range& b) {
  const auto* const x = static_cast<const std::byte*>(a.begin);
  const auto* const y = static_cast<const std::byte*>(b.begin);
  return x < y + b.bytes && y < x + a.bytes;
}

}  // namespace

void GpuWorld::merge(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

std::shared_ptr<GpuDouble> GpuWorld::newGpu() {
  const std::lock_guard lock(mutex_);
  devices_.push_back(std::make_shared<GpuDouble>(*this, static_cast<int>(devices_.size())));
  return devices_.back();
}

GpuWorld::Stream& GpuWorld::newStream(GpuDouble& device) {
  streams_.push_back({&device, streams_.size(), {}, {}, 0});
  device.streams_.push_back(&streams_.back());
  return streams_.back();
}

void GpuWorld::enqueue(Stream& stream, std::unique_ptr<Item> item) {
  item->stream = &stream;
  item->known = stream.device->known_;
  item->order = stream.device->launched_++;
  for (const std::unique_ptr<Message>& message : item->messages) {
    message->item = item.get();
    Matching& pair = matching_[{message->comm, message->from, message->to}];
    std::vector<Message*>&mine = message->isSend ? pair.sends : pair.recvs,
    &theirs = message->isSend ? pair.recvs : pair.sends;
    mine.push_back(message.get());
    if (theirs.size() < mine.size()) continue;
    message->partner = theirs[mine.size() - 1];
    message->partner->partner = message.get();
    if (message->partner->bytes != message->bytes && !options_.sizesMayDiffer)
      problem(item->what + ": " + std::to_string(message->bytes) + " bytes from " +
              std::to_string(message->from) + " to " + std::to_string(message->to) +
              " meet a message of " + std::to_string(message->partner->bytes));
  }
  stream.queue.push_back(std::move(item));
  changed_.notify_all();
}

bool GpuWorld::runnable(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Item& item = *stream.queue.front();
  if (options_.oneQueue)
    for (const Stream* other : stream.device->streams_)
      if (!other->queue.empty() && other->queue.front()->order < item.order) return false;
  if (item.kind == Kind::wait) return item.event->done.contains(item.version);
  if (item.kind == Kind::group && item.started)
    return std::ranges::all_of(item.messages, [](const auto& m) { return m->done; });
  return true;
}

void GpuWorld::start(Stream& stream, Item& item) {
  item.started = true;
  merge(stream.clock, item.known);
  if (stream.clock.size() <= stream.number) stream.clock.resize(stream.number + 1);
  ++stream.clock[stream.number];
  if (item.rangesNow) item.ranges = item.rangesNow();
  for (const Range& range : item.ranges) check(stream, range, item.what);
  for (const std::unique_ptr<Message>& message : item.messages)
    if (message->isSend) check(stream, {message->data, message->bytes, false}, item.what);
}

// A conflicting access must be known to have happened before.
void GpuWorld::check(const Stream& stream, const Range& range, const std::string& what) {
  GpuDouble& device = *stream.device;
  checkPlace(stream, range, what);
  const auto known = [](const Clock& clock, const Access& access) {
    return access.stream < clock.size() && access.tick <= clock[access.stream];
  };
  std::erase_if(device.history_,
                [&](const Access& access) { return known(device.known_, access); });
  for (const Access& before : device.history_)
    if ((range.write || before.range.write) && overlap(range, before.range) &&
        !known(stream.clock, before))
      problem("device " + std::to_string(device.number_) + ": nothing orders " + what + " after " +
              before.what + ", and they touch the same bytes");
  device.history_.push_back({range, stream.number, stream.clock[stream.number], what});
}

void GpuWorld::checkPlace(const Stream& stream, const Range& range, const std::string& what) {
  if (!options_.ownMemory || range.bytes == 0 || stream.device->owns(range) != range.host) return;
  problem("device " + std::to_string(stream.device->number_) + ": " + what +
          (range.host ? " takes memory of the device for the host's"
                      : " touches what is not memory of the device"));
}

// Both have started.
void GpuWorld::transfer(Message& a, Message& b) {
  const Message& from = a.isSend ? a : b;
  const Message& to = a.isSend ? b : a;
  Stream& arriving = *to.item->stream;
  merge(arriving.clock, from.item->stream->clock);
  if (!to.inside) check(arriving, {to.data, to.bytes, true}, to.item->what);
  if (const std::size_t bytes = std::min(from.bytes, to.bytes); bytes > 0)
    std::memcpy(to.data, from.data, bytes);
  for (const Message* each : {&a, &b})
    each->item->stream->device->secondsOfMessages_ +=
        GpuDouble::kLatency + GpuDouble::kSecondsPerByte * static_cast<double>(each->bytes);
  a.done = b.done = true;
}

void GpuWorld::advance(Stream& stream) {
  Item& item = *stream.queue.front();
  if (!item.started) start(stream, item);
  switch (item.kind) {
    case Kind::kernel:
      item.work();
      break;
    case Kind::record:
      item.event->done[item.version] = stream.clock;
      break;
    case Kind::wait:
      merge(stream.clock, item.event->done[item.version]);
      break;
    case Kind::group:
      for (const std::unique_ptr<Message>& message : item.messages)
        if (!message->done && message->partner != nullptr && message->partner->item->started &&
            (message->partner->bytes == message->bytes || !options_.sizesMayDiffer))
          transfer(*message, *message->partner);
      if (!std::ranges::all_of(item.messages, [](const auto& m) { return m->done; })) return;
      if (item.work) item.work();
      break;
  }
  stream.queue.pop_front();
}

void GpuWorld::runLocked() {
  std::vector<Stream*> ready;
  for (bool any = false;; any = true) {
    ready.clear();
    for (Stream& stream : streams_)
      if (runnable(stream)) ready.push_back(&stream);
    if (ready.empty()) {
      if (any) changed_.notify_all();
      return;
    }
    advance(*ready[random_() % ready.size()]);
  }
}

bool GpuWorld::runUntil(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (true) {
    runLocked();
    if (done()) return true;
    if (changed_.wait_until(lock, end) == std::cv_status::timeout) return false;
  }
}

void GpuWorld::run() {
  const std::lock_guard lock(mutex_);
  runLocked();
}

std::string GpuWorld::stuck() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Stream& stream : streams_)
    if (!stream.queue.empty())
      text += "device " + std::to_string(stream.device->number_) + " stream " +
              std::to_string(stream.number) + ": " + stream.queue.front()->what + " and " +
              std::to_string(stream.queue.size() - 1) + " more\n";
  for (const auto& [thread, group] : groups_)
    if (group.depth > 0) text += "a thread has left a group open\n";
  return text;
}

std::string GpuWorld::problems() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (std::size_t i = 0; i < problems_.size() && i < 8; ++i) text += problems_[i] + "\n";
  return text;
}

std::string GpuWorld::leftovers() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const std::shared_ptr<GpuDouble>& device : devices_)
    if (device->events_.size() + device->comms_.size() + device->memory_.size() +
            device->pinned_.size() >
        0)
      text += "device " + std::to_string(device->number_) + ": " +
              std::to_string(device->events_.size()) + " events, " +
              std::to_string(device->comms_.size()) + " communicators, " +
              std::to_string(device->memory_.size() + device->pinned_.size()) +
              " pieces of memory\n";
  return text;
}

void GpuWorld::breakDown(moecclResult_t result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  broken_ = result;
  brokenText_ = text;
}

std::vector<GpuCall> GpuWorld::calls() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

}  // namespace moeccl::test

// Makes lanes and memory as calls need them, puts calls in order, and bounds the time in which NCCL
// connects ranks.
#include "src/exec/nccl_lanes.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "src/base/text.h"
#include "src/bootstrap/signals.h"
#include "src/exec/polling.h"

namespace moeccl {

NcclLanes::NcclLanes(std::shared_ptr<Gpu> gpu, Gpu::Comm root, Patience patience, bool registers)
    : gpu_(std::move(gpu)), root_(root), registers_(registers) {
  setPatience(std::move(patience));
  try {
    device_ = gpu_->device(root);
    const OnDevice here(*gpu_, device_);
    addLane();
    last_ = gpu_->newEvent();
    lastCaptured_ = gpu_->newEvent();
  } catch (...) {
    abortAll();
    throw;
  }
}

NcclLanes::~NcclLanes() {
  try {
    const OnDevice here(*gpu_, device_);
    abortAll();
    for (Gpu::Event event : events_) gpu_->deleteEvent(event);
    gpu_->deleteEvent(last_);
    gpu_->deleteEvent(lastCaptured_);
    for (const LaneStreams& lane : streams_)
      for (Gpu::Stream stream : {lane.usual, lane.urgent})
        if (stream != nullptr) gpu_->deleteStream(stream);
    if (arena_ != nullptr) outgrown_.push_back(arena_);
    for (std::byte* arena : outgrown_) freeArena(arena);
    for (std::byte* memory : host_) gpu_->freePinned(memory);
    rowMemory_->close();
  } catch (...) {  // CUDA has gone before us, and all of this with it
  }
}

void NcclLanes::setPatience(Patience patience) {
  patience_ = {patience.timeoutMs, [this, look = std::move(patience.check)] {
                 {
                   const std::lock_guard lock(commsMutex_);
                   requireWhole();
                 }
                 look();
               }};
}

void NcclLanes::begin(Gpu::Stream stream, const Needs& needs) {
  const std::uint64_t capture = gpu_->capture(stream);
  capturing_ = capture != 0;
  if (!capturing_) {
    grow(needs);
    if (called_) gpu_->wait(stream, last_);
    return;
  }
  requireForCapture(needs);
  if (capture_ == capture)
    gpu_->wait(stream, lastCaptured_);
  else
    gpu_->keepInGraph(stream, graphs_);
  inGraphs_ |= needs.arenaBytes > 0;
  capture_ = capture;
}

void NcclLanes::end(Gpu::Stream stream) {
  gpu_->record(capturing_ ? lastCaptured_ : last_, stream);
  if (!capturing_) called_ = true;
}

void NcclLanes::requireForCapture(const Needs& needs) const {
  if (needs.lanes <= lanes() && needs.events <= static_cast<int>(events_.size()) &&
      needs.arenaBytes <= arenaBytes_)
    return;
  throw RefusedInCapture(
      moecclInvalidUsage,
      stringf("the stream is being captured, and this call needs more than earlier ones have "
              "left (%d lanes of %zu, %zu bytes of memory of %zu): make the same call once "
              "before the capture",
              needs.lanes, static_cast<std::size_t>(lanes()), needs.arenaBytes, arenaBytes_));
}

void NcclLanes::grow(const Needs& needs) {
  while (static_cast<int>(events_.size()) < needs.events) events_.push_back(gpu_->newEvent());
  if (needs.arenaBytes > arenaBytes_) growArena(needs.arenaBytes);
  if (needs.hostBytes > hostBytes_) {
    host_.push_back(gpu_->allocatePinned(needs.hostBytes));
    hostBytes_ = needs.hostBytes;
  }
  if (needs.lanes <= lanes()) return;
  // All streams now: during a capture none should be made.
  for (int lane = 0; lane < needs.lanes; ++lane) stream(lane, true), stream(lane, false);
  // Memory is allocated, for which the device may have to come to rest.
  await("more lanes");
  while (lanes() < needs.lanes) addLane();
}

void NcclLanes::meet() {
  if (gpu_->ranks(root_) > 1) gpu_->split(root_, -1, 0, Gpu::Purpose::parts, patience_);
}

void NcclLanes::addLane() {
  const Inside inside(*this);
  {
    const std::lock_guard lock(commsMutex_);
    comms_.reserve(comms_.size() + 1);
  }
  const Gpu::Comm comm =
      gpu_->split(root_, 0, gpu_->rank(root_), Gpu::Purpose::messages, patience_);
  connected_.emplace_back(2 * static_cast<std::size_t>(gpu_->ranks(root_)));
  {
    const std::lock_guard lock(commsMutex_);
    comms_.push_back(comm);
  }
  registerWith(comm);
}

std::byte* NcclLanes::allocateArena(std::size_t bytes) {
  return registers_ ? gpu_->allocateForMessages(bytes) : gpu_->allocate(bytes);
}

void NcclLanes::freeArena(std::byte* arena) noexcept {
  deregister(arena);
  if (registers_)
    gpu_->freeForMessages(arena);
  else
    gpu_->free(arena);
}

void NcclLanes::registerWith(Gpu::Comm comm) {
  if (!registers_ || arena_ == nullptr) return;
  registrations_.reserve(registrations_.size() + 1);
  if (void* const handle = gpu_->registerWith(comm, arena_, arenaBytes_); handle != nullptr)
    registrations_.push_back({comm, arena_, handle});
}

void NcclLanes::deregister(const std::byte* arena) noexcept {
  std::erase_if(registrations_, [&](const Registration& it) {
    if (arena != nullptr && it.arena != arena) return false;
    gpu_->deregister(it.comm, it.handle);
    return true;
  });
}

bool NcclLanes::isFirst(int lane, int peer, bool isSend) {
  std::vector<bool>& all = connected_[static_cast<std::size_t>(lane)];
  const std::size_t at = 2 * static_cast<std::size_t>(peer) + (isSend ? 1 : 0);
  if (all[at]) return false;
  all[at] = true;
  return true;
}

void NcclLanes::connect(const std::string& whom, const std::function<void()>& call) {
  const auto timeout = [&] {
    return Error(
        moecclTimeout,
        stringf("NCCL is not connected to %s after %lld ms; not all of these have made the "
                "call, or are stuck in it",
                whom.c_str(), static_cast<long long>(patience_.timeoutMs)));
  };
  if (gpu_->revokes()) return watch(call, timeout);
  // A lane that does not block ends the call itself.
  try {
    call();
  } catch (const Error& e) {
    if (e.result() != moecclTimeout) throw;
    interrupt();
    throw timeout();
  }
}

void NcclLanes::watch(const std::function<void()>& call, const std::function<Error()>& timeout) {
  const Polling polling;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::exception_ptr ended;
  std::thread watcher;
  {
    const SignalsBlocked blocked;
    watcher = std::thread([&] {
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, std::chrono::milliseconds(10), [&] { return over; })) try {
          patience_.check();
          if (polling.hasTaken(patience_.timeoutMs)) throw timeout();
        } catch (...) {
          ended = std::current_exception();
          return interrupt();
        }
    });
  }
  std::exception_ptr failed;
  try {
    call();
  } catch (...) {
    failed = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_one();
  watcher.join();
  if (ended) std::rethrow_exception(ended);
  if (failed) std::rethrow_exception(failed);
}

void NcclLanes::run(Gpu::Native what, const std::byte* from, std::byte* to, std::size_t count,
                    moecclDataType_t datatype, moecclRedOp_t op, Gpu::Stream stream) {
  const Inside inside(*this);
  const auto call = [&] {
    gpu_->run(what, from, to, count, datatype, op, comm(0), stream, patience_);
  };
  // By the size NCCL chooses an algorithm of its own, which may need other connections.
  std::uint64_t& known = sizesRun_[static_cast<std::size_t>(what)];
  const std::uint64_t size = std::uint64_t{1} << (std::bit_width(count) & 63);
  if ((known & size) != 0) return call();
  known |= size;
  connect("all ranks", call);
}

LaneGroup::LaneGroup(NcclLanes& lanes, int lane, Gpu::Stream stream)
    : lanes_(lanes), inside_(lanes), lane_(lane), comm_(lanes.comm(lane)), stream_(stream) {
  lanes.gpu().groupStart();
}

LaneGroup::~LaneGroup() {
  if (!open_) return;
  try {
    lanes_.gpu().groupEnd(comm_, 0);
  } catch (...) {  // the first error is on its way
  }
}

void LaneGroup::send(const std::byte* from, std::size_t bytes, int peer) {
  lanes_.gpu().send(from, bytes, peer, comm_, stream_);
  if (lanes_.isFirst(lane_, peer, true)) strangers_.push_back(peer);
}

void LaneGroup::recv(std::byte* to, std::size_t bytes, int peer) {
  lanes_.gpu().recv(to, bytes, peer, comm_, stream_);
  if (lanes_.isFirst(lane_, peer, false)) strangers_.push_back(peer);
}

void LaneGroup::end() {
  open_ = false;
  const auto end = [&] { lanes_.gpu().groupEnd(comm_, lanes_.patience_); };
  if (strangers_.empty()) return end();
  std::ranges::sort(strangers_);
  strangers_.erase(std::unique(strangers_.begin(), strangers_.end()), strangers_.end());
  lanes_.connect(rankList(strangers_), end);
}

int NcclLanes::lanes() const {
  const std::lock_guard lock(commsMutex_);
  return static_cast<int>(comms_.size());
}

Gpu::Comm NcclLanes::comm(int lane) const {
  const std::lock_guard lock(commsMutex_);
  requireWhole();
  return comms_[static_cast<std::size_t>(lane)];
}

// A quarter more than before, where there is as much: not every new maximum should free memory,
// which waits for all work of the device.
void NcclLanes::growArena(std::size_t bytes) {
  const Inside inside(*this);
  if (arena_ != nullptr && !inGraphs_) await("more memory");
  const std::size_t ample = std::max(bytes, arenaBytes_ + arenaBytes_ / 4);
  std::byte* memory = nullptr;
  try {
    memory = allocateArena(ample);
    bytes = ample;
  } catch (const Error&) {
    if (ample == bytes) throw;
    memory = allocateArena(bytes);
  }
  if (inGraphs_)
    outgrown_.push_back(arena_);
  else if (arena_ != nullptr)
    freeArena(arena_);
  inGraphs_ = false;
  arena_ = memory;
  arenaBytes_ = bytes;
  for (int lane = 0; lane < lanes(); ++lane) registerWith(comm(lane));
}

Gpu::Stream NcclLanes::stream(int lane, bool urgent) {
  LaneStreams& streams = streams_[static_cast<std::size_t>(lane)];
  Gpu::Stream& stream = urgent ? streams.urgent : streams.usual;
  if (stream == nullptr) stream = gpu_->newStream(urgent);
  return stream;
}

void NcclLanes::await(const std::string& what) {
  for (Polling polling; called_ && !gpu_->complete(last_); polling.pause()) {
    std::string text;
    if (const moecclResult_t result = asyncError(&text); result != moecclSuccess)
      throw Error(result, what + ": " + text);
    patience_.check();
    if (polling.hasTaken(patience_.timeoutMs))
      throw Error(
          moecclTimeout,
          stringf("%s: earlier work is not complete after %lld ms; ranks are stuck, in another "
                  "collective, or not calling at all",
                  what.c_str(), static_cast<long long>(patience_.timeoutMs)));
  }
}

moecclResult_t NcclLanes::asyncError(std::string* text) {
  // NCCL is asked without the mutex: whoever interrupts must not wait for its answer.
  std::optional<Inside> inside;
  std::vector<Gpu::Comm> comms;
  {
    const std::lock_guard lock(commsMutex_);
    if (interrupted_) return moecclSuccess;
    inside.emplace(*this, lock);
    comms = comms_;
  }
  for (Gpu::Comm comm : comms)
    if (const moecclResult_t result = gpu_->asyncError(comm, text); result != moecclSuccess)
      return result;
  return moecclSuccess;
}

}  // namespace moeccl

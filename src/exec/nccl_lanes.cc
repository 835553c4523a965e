#include "src/exec/nccl_lanes.h"

#include <utility>

#include "src/error.h"
#include "src/text.h"

namespace moeccl {

NcclLanes::NcclLanes(std::shared_ptr<Gpu> gpu, Gpu::Comm comm)
    : gpu_(std::move(gpu)), device_(gpu_->device(comm)), comms_{comm} {
  const OnDevice here(*gpu_, device_);
  last_ = gpu_->newEvent();
  lastCaptured_ = gpu_->newEvent();
}

NcclLanes::~NcclLanes() {
  const OnDevice here(*gpu_, device_);
  for (Gpu::Event event : events_) gpu_->deleteEvent(event);
  gpu_->deleteEvent(last_);
  gpu_->deleteEvent(lastCaptured_);
  for (const LaneStreams& lane : streams_)
    for (Gpu::Stream stream : {lane.usual, lane.urgent})
      if (stream != nullptr) gpu_->deleteStream(stream);
  gpu_->free(arena_);
  for (std::byte* memory : outgrown_) gpu_->free(memory);
}

void NcclLanes::begin(Gpu::Stream stream, const Needs& needs) {
  const std::uint64_t capture = gpu_->capture(stream);
  if (capture != 0) {
    requireForCapture(needs);
    inGraphs_ |= needs.arenaBytes > 0;
    if (capture_ == capture) gpu_->wait(stream, lastCaptured_);
    capture_ = capture;
    return;
  }
  grow(needs);
  if (called_) gpu_->wait(stream, last_);
  capture_ = 0;
}

void NcclLanes::end(Gpu::Stream stream) {
  if (capture_ != 0) return gpu_->record(lastCaptured_, stream);
  gpu_->record(last_, stream);
  called_ = true;
}

void NcclLanes::requireForCapture(const Needs& needs) const {
  if (needs.lanes <= static_cast<int>(comms_.size()) &&
      needs.events <= static_cast<int>(events_.size()) && needs.arenaBytes <= arenaBytes_)
    return;
  throw Error(
      moecclInvalidUsage,
      stringf("the stream is being captured, and this call needs more than earlier ones have "
              "left (%d lanes of %zu, %zu bytes of memory of %zu): make the same call once "
              "before the capture",
              needs.lanes, comms_.size(), needs.arenaBytes, arenaBytes_));
}

void NcclLanes::grow(const Needs& needs) {
  while (static_cast<int>(events_.size()) < needs.events) events_.push_back(gpu_->newEvent());
  if (needs.arenaBytes > arenaBytes_) {
    std::byte* const memory = gpu_->allocate(needs.arenaBytes);
    if (inGraphs_)
      outgrown_.push_back(arena_);
    else
      gpu_->free(arena_);
    inGraphs_ = false;
    arena_ = memory;
    arenaBytes_ = needs.arenaBytes;
  }
  while (static_cast<int>(comms_.size()) < needs.lanes) {
    comms_.reserve(comms_.size() + 1);
    comms_.push_back(gpu_->split(comms_[0], 0, gpu_->rank(comms_[0])));
  }
}

Gpu::Stream NcclLanes::stream(int lane, bool urgent) {
  LaneStreams& streams = streams_[static_cast<std::size_t>(lane)];
  Gpu::Stream& stream = urgent ? streams.urgent : streams.usual;
  if (stream == nullptr) stream = gpu_->newStream(urgent);
  return stream;
}

bool NcclLanes::complete() { return !called_ || gpu_->complete(last_); }

moecclResult_t NcclLanes::asyncError(std::string* text) {
  for (Gpu::Comm comm : comms_)
    if (const moecclResult_t result = gpu_->asyncError(comm, text); result != moecclSuccess)
      return result;
  return moecclSuccess;
}

void NcclLanes::destroy() noexcept {
  while (!comms_.empty()) {
    gpu_->destroy(comms_.back());
    comms_.pop_back();
  }
}

void NcclLanes::abort() noexcept {
  while (!comms_.empty()) {
    gpu_->abort(comms_.back());
    comms_.pop_back();
  }
}

}  // namespace moeccl

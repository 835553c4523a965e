// Queues what a device is asked to do, and checks its arguments as CUDA and NCCL would.
#include "tests/exec/gpu_double.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/weigh.h"
#include "src/base/error.h"

namespace moeccl::test {
namespace {

using Lock = std::lock_guard<std::mutex>;

// Without the lock, as NCCL has none that its callers could meet with one of theirs.
void checkPatience(std::unique_lock<std::mutex>& lock, const Patience& patience) {
  struct Relock {
    ~Relock() { lock.lock(); }
    std::unique_lock<std::mutex>& lock;
  };
  lock.unlock();
  const Relock relock{lock};
  patience.check();
}

// Nothing may come from nowhere.
void copyBytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::string bytesText(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

// The ranges of memory that rows are in; rows that follow one another are one.
class RowRanges {
 public:
  explicit RowRanges(const RowMatrices& matrices) : matrices_(matrices) {}
  void add(RowAt at, bool write) {
    const std::byte* const begin = matrices_.row(at);
    if (!ranges_.empty())
      if (GpuWorld::Range& last = ranges_.back();
          last.write == write && static_cast<const std::byte*>(last.begin) + last.bytes == begin) {
        last.bytes += matrices_.rowBytes;
        return;
      }
    ranges_.push_back({begin, matrices_.rowBytes, write});
  }
  template <typename T>
  void list(const T* begin, std::int64_t count) {
    if (begin != nullptr)
      ranges_.push_back({begin, static_cast<std::size_t>(count) * sizeof(T), false});
  }
  std::vector<GpuWorld::Range> take() { return std::move(ranges_); }

 private:
  const RowMatrices& matrices_;
  std::vector<GpuWorld::Range> ranges_;
};

// Threads of one kernel have no order.
bool touchTheSame(std::vector<GpuWorld::Range> ranges) {
  std::ranges::sort(ranges, {}, &GpuWorld::Range::begin);
  const std::byte *readEnd = nullptr, *writeEnd = nullptr;
  for (const GpuWorld::Range& range : ranges) {
    const auto* const begin = static_cast<const std::byte*>(range.begin);
    if (begin < writeEnd || (range.write && begin < readEnd)) return true;
    (range.write ? writeEnd : readEnd) =
        std::max(range.write ? writeEnd : readEnd, begin + range.bytes);
  }
  return false;
}

}  // namespace

void GpuDouble::refuse(const std::string& text) {
  const std::string whole = "device " + std::to_string(number_) + ": " + text;
  world_.problem(whole);
  throw std::logic_error("the double refuses: " + whole);
}

int& GpuDouble::current() {
  thread_local std::map<std::pair<const GpuDouble*, int>, int> devices;
  // The caller has chosen the device of its rank; other threads begin with 0, as CUDA's do.
  const int first = std::this_thread::get_id() == thread_ ? number_ : 0;
  return devices.try_emplace({this, number_}, first).first->second;
}

double GpuDouble::secondsOfMessages() const {
  const Lock lock(world_.mutex_);
  return secondsOfMessages_;
}

void GpuDouble::setDevice(int device) {
  const Lock lock(world_.mutex_);
  current() = device;
  noteContext();
}

// From CUDA 12 on cudaSetDevice makes one; NCCL's groups call it.
void GpuDouble::noteContext() {
  if (std::this_thread::get_id() != thread_ && current() != number_)
    world_.problem("device " + std::to_string(number_) + ": its rank has a context on device " +
                   std::to_string(current()));
}

void GpuDouble::requireCurrent() {
  if (current() != number_)
    refuse("is meant while device " + std::to_string(current()) + " is current");
}

void GpuDouble::note(GpuCall call) {
  call.device = number_;
  world_.calls_.push_back(std::move(call));
}

GpuWorld::Stream& GpuDouble::streamOf(Stream stream) {
  if (stream == nullptr) {
    if (legacy_ == nullptr) legacy_ = &world_.newStream(*this);
    return *legacy_;
  }
  const auto known = std::ranges::find(streams_, stream);
  if (known == streams_.end()) refuse("a stream that is not there");
  return **known;
}

std::shared_ptr<GpuWorld::Event> GpuDouble::eventOf(Event event) {
  const auto known = events_.find(static_cast<GpuWorld::Event*>(event));
  if (known == events_.end()) refuse("an event that is not there");
  return known->second;
}

GpuDouble::CommState& GpuDouble::commOf(Comm comm) {
  const auto known = comms_.find(static_cast<CommState*>(comm));
  if (known == comms_.end()) refuse("a communicator that is not there");
  return *known->second;
}

void GpuDouble::submit(GpuWorld::Stream& stream, std::unique_ptr<GpuWorld::Item> item) {
  if (stream.capture == 0) return world_.enqueue(stream, std::move(item));
  ++capture_->after[&stream][&stream];
  capture_->items.push_back({&stream, std::move(item)});
}

// ---- Memory, streams and events ----

std::byte* GpuDouble::allocate(std::size_t bytes) {
  if (const auto hook = std::exchange(onAllocate_, nullptr)) hook();
  const Lock lock(world_.mutex_);
  requireCurrent();
  if (capture_) refuse("allocates during a capture");
  if (bytes >= limit_) throw Error(moecclUnhandledCudaError, "cudaMalloc: out of memory");
  Memory memory = map(bytes);
  std::byte* const begin = memory.get();
  memory_[begin] = std::move(memory);
  return begin;
}

std::byte* GpuDouble::allocateForMessages(std::size_t bytes) {
  std::byte* const memory = allocate(bytes);
  const Lock lock(world_.mutex_);
  forMessages_.insert(memory);
  return memory;
}

void GpuDouble::freeForMessages(std::byte* memory) noexcept {
  {
    const Lock lock(world_.mutex_);
    if (forMessages_.erase(memory) == 0)
      world_.problem("memory is freed that was not allocated for messages");
    for (const auto& [handle, comm] : comms_)
      if (comm->registered.contains(memory)) world_.problem("registered memory is freed");
  }
  free(memory);
}

void* GpuDouble::registerWith(Comm comm, std::byte* memory, std::size_t bytes) noexcept {
  const Lock lock(world_.mutex_);
  const auto known = memory_.find(memory);
  if (!forMessages_.contains(memory) || known == memory_.end() ||
      known->second.get_deleter().bytes < bytes) {
    world_.problem("memory is registered that is none for messages");
    return nullptr;
  }
  if (world_.options_.withoutRegistration) return nullptr;
  note({.kind = GpuCall::Kind::registration, .bytes = bytes});
  if (!commOf(comm).registered.insert(memory).second)
    world_.problem("memory is registered a second time");
  return memory;
}

void GpuDouble::deregister(Comm comm, void* registration) noexcept {
  const Lock lock(world_.mutex_);
  if (commOf(comm).registered.erase(static_cast<std::byte*>(registration)) == 0)
    world_.problem("memory is deregistered that is not registered");
}

GpuDouble::Memory GpuDouble::map(std::size_t bytes) {
  void* const memory = mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // More than this is a workspace, whose users spoil it themselves.
  std::memset(memory, 0xa5, std::min(bytes, std::size_t{1} << 20));
  return Memory(static_cast<std::byte*>(memory), Unmap{bytes});
}

void GpuDouble::Unmap::operator()(std::byte* memory) const {
  munmap(memory, std::max<std::size_t>(bytes, 1));
}

void GpuDouble::free(std::byte* memory) noexcept {
  if (memory == nullptr) return;
  std::unique_lock lock(world_.mutex_);
  if (forMessages_.contains(memory)) world_.problem("memory for messages is freed as other memory");
  if (capture_) world_.problem("memory is freed during a capture");
  // As cudaFree: after what is under way, which may need other ranks.
  world_.runLocked();
  if (world_.options_.threads && !world_.runUntil(lock, [&] { return idle(); }))
    world_.problem("memory is freed while there is work that never ends");
  const auto known = memory_.find(memory);
  if (known == memory_.end()) return world_.problem("memory is freed that is not there");
  kept_.push_back(std::move(known->second));
  memory_.erase(known);
}

std::byte* GpuDouble::allocatePinned(std::size_t bytes) {
  const Lock lock(world_.mutex_);
  requireCurrent();
  Memory memory = map(bytes);
  std::byte* const begin = memory.get();
  pinned_[begin] = std::move(memory);
  return begin;
}

void GpuDouble::freePinned(std::byte* memory) noexcept {
  const Lock lock(world_.mutex_);
  const auto known = pinned_.find(memory);
  if (known == pinned_.end()) return world_.problem("pinned memory is freed that is not there");
  kept_.push_back(std::move(known->second));
  pinned_.erase(known);
}

bool GpuDouble::owns(const GpuWorld::Range& range) const {
  const auto* const begin = static_cast<const std::byte*>(range.begin);
  auto behind = memory_.upper_bound(begin);
  if (behind == memory_.begin()) return false;
  const auto& [first, memory] = *--behind;
  return begin + range.bytes <= first + memory.get_deleter().bytes;
}

bool GpuDouble::idle() const {
  return std::ranges::all_of(streams_, [](const auto* stream) { return stream->queue.empty(); });
}

Gpu::Stream GpuDouble::newStream(bool urgent) {
  const Lock lock(world_.mutex_);
  requireCurrent();
  note({.kind = GpuCall::Kind::newStream, .urgent = urgent});
  GpuWorld::Stream& stream = world_.newStream(*this);
  stream.urgent = urgent;
  return &stream;
}

void GpuDouble::deleteStream(Stream stream) noexcept {
  const Lock lock(world_.mutex_);
  // Its work goes on, as CUDA's; only the handle is gone.
  if (static_cast<GpuWorld::Stream*>(stream)->capture != 0)
    world_.problem("a stream is deleted during its capture");
}

Gpu::Event GpuDouble::newEvent() {
  const Lock lock(world_.mutex_);
  requireCurrent();
  auto event = std::make_shared<GpuWorld::Event>();
  events_[event.get()] = event;
  return event.get();
}

void GpuDouble::deleteEvent(Event event) noexcept {
  const Lock lock(world_.mutex_);
  if (events_.erase(static_cast<GpuWorld::Event*>(event)) == 0)
    world_.problem("an event is deleted that is not there");
}

void GpuDouble::record(Event event, Stream stream) {
  const Lock lock(world_.mutex_);
  GpuWorld::Stream& on = streamOf(stream);
  auto item = std::make_unique<GpuWorld::Item>();
  item->kind = GpuWorld::Kind::record;
  item->what = "the record of an event";
  item->event = eventOf(event);
  item->version = ++item->event->issued;
  note({.kind = GpuCall::Kind::record,
        .stream = on.number,
        .event = {item->event.get(), item->version}});
  item->event->capture = on.capture;
  GpuWorld::Event* const which = item->event.get();
  submit(on, std::move(item));
  if (on.capture != 0) capture_->recorded[which] = capture_->after[&on];
}

void GpuDouble::wait(Stream stream, Event event) {
  const Lock lock(world_.mutex_);
  GpuWorld::Stream& on = streamOf(stream);
  auto item = std::make_unique<GpuWorld::Item>();
  item->kind = GpuWorld::Kind::wait;
  item->what = "the wait for an event";
  item->event = eventOf(event);
  item->version = item->event->issued;
  if (item->version == 0) refuse("waits for an event that nobody has recorded");
  note({.kind = GpuCall::Kind::wait,
        .stream = on.number,
        .event = {item->event.get(), item->version}});
  if (item->event->capture != 0) {
    if (!capture_ || item->event->capture != capture_->id)
      refuse("waits for an event of a capture that is over");
    on.capture = capture_->id;
  } else if (on.capture != 0) {
    refuse("a captured stream waits for an event from outside the capture");
  }
  if (on.capture != 0)
    for (const auto& [other, items] : capture_->recorded[item->event.get()]) {
      std::size_t& after = capture_->after[&on][other];
      after = std::max(after, items);
    }
  submit(on, std::move(item));
}

bool GpuDouble::complete(Event event) {
  const Lock lock(world_.mutex_);
  // What another thread of the library finds out, the caller does not know.
  const bool ranks = std::this_thread::get_id() == thread_;
  if (ranks && capture_) refuse("looks at an event during a capture");
  world_.runLocked();
  const std::shared_ptr<GpuWorld::Event> of = eventOf(event);
  const auto done = of->done.find(of->issued);
  if (done == of->done.end()) return false;
  if (ranks) GpuWorld::merge(known_, done->second);
  return true;
}

void GpuDouble::await(Event event) {
  std::unique_lock lock(world_.mutex_);
  requireCurrent();
  if (capture_) refuse("waits during a capture");
  note({.kind = GpuCall::Kind::hostWait});
  const std::shared_ptr<GpuWorld::Event> of = eventOf(event);
  if (of->issued == 0) refuse("waits for an event that nobody has recorded");
  const auto done = [&] { return of->done.contains(of->issued); };
  if (!world_.runUntil(lock, done)) refuse("waits for what does not come to pass");
  GpuWorld::merge(known_, of->done[of->issued]);
}

void GpuDouble::synchronize(Stream stream) {
  const Event event = newEvent();
  record(event, stream);
  await(event);
  deleteEvent(event);
}

std::uint64_t GpuDouble::capture(Stream stream) {
  const Lock lock(world_.mutex_);
  if (capture_ && stream == nullptr && capture_->blocking)
    throw RefusedInCapture(moecclInvalidUsage,
                           "the legacy default stream during another's capture");
  const std::uint64_t id = streamOf(stream).capture;
  if (id != 0 && capture_->invalid)
    throw RefusedInCapture(moecclInvalidUsage, "a capture that has failed");
  return id;
}

void GpuDouble::keepInGraph(Stream stream, std::shared_ptr<const void> what) {
  const Lock lock(world_.mutex_);
  if (streamOf(stream).capture == 0) refuse("keeps something in the graph of no capture");
  capture_->kept.push_back(std::move(what));
}

// ---- Kernels ----

void GpuDouble::kernel(const std::string& what,
                       std::function<std::vector<GpuWorld::Range>()> ranges,
                       std::function<void()> work, Stream stream) {
  const Lock lock(world_.mutex_);
  requireCurrent();
  requireWhole(what);
  note({.kind = GpuCall::Kind::kernel, .name = what});
  auto item = std::make_unique<GpuWorld::Item>();
  item->what = what;
  item->rangesNow = std::move(ranges);
  item->work = std::move(work);
  submit(streamOf(stream), std::move(item));
}

void GpuDouble::requireWhole(const std::string& what) const {
  if (!brokenKernel_.empty() && what.starts_with(brokenKernel_))
    throw Error(moecclUnhandledCudaError, what + ": the double's launch failed");
}

void GpuDouble::breakKernels(const std::string& what) {
  const Lock lock(world_.mutex_);
  brokenKernel_ = what;
}

void GpuDouble::toDevice(std::byte* to, const void* from, std::size_t bytes, Stream stream) {
  kernel(
      "a copy of " + bytesText(bytes) + " to the device",
      [=] {
        return std::vector<GpuWorld::Range>{{to, bytes, true}, {from, bytes, false, true}};
      },
      [=] { copyBytes(to, from, bytes); }, stream);
}

void GpuDouble::toHost(void* to, const std::byte* from, std::size_t bytes, Stream stream) {
  kernel(
      "a copy of " + bytesText(bytes) + " to the host",
      [=] {
        return std::vector<GpuWorld::Range>{{from, bytes, false}, {to, bytes, true, true}};
      },
      [=] { copyBytes(to, from, bytes); }, stream);
}

void GpuDouble::copyBlocks(std::span<const BlockCopy> copies, Stream stream) {
  const Lock lock(world_.mutex_);
  auto item = std::make_unique<GpuWorld::Item>();
  item->what = "a copy of " + std::to_string(copies.size()) + " runs of blocks";
  auto left = static_cast<std::size_t>(std::ranges::count_if(
      copies, [](const BlockCopy& copy) { return copy.bytes > 0 && copy.count > 0; }));
  for (const std::size_t most = cuda::copiesPerLaunch(copies); left > 0;) {
    const std::size_t now = std::min(left, most);
    note({.kind = GpuCall::Kind::copy, .runs = now});
    left -= now;
  }
  for (const BlockCopy& copy : copies)
    for (std::int64_t i = 0; i < copy.count; ++i) {
      item->ranges.push_back({copy.src + i * copy.srcStride, copy.bytes, false});
      item->ranges.push_back({copy.dst + i * copy.dstStride, copy.bytes, true});
    }
  // Threads of one kernel have no order: what one copies another must not touch.
  std::vector<GpuWorld::Range> sorted = item->ranges;
  std::ranges::sort(sorted, {}, &GpuWorld::Range::begin);
  const std::byte *readEnd = nullptr, *writeEnd = nullptr;
  for (const GpuWorld::Range& range : sorted) {
    const auto* const begin = static_cast<const std::byte*>(range.begin);
    if (begin < writeEnd || (range.write && begin < readEnd))
      refuse("copies of one launch touch the same bytes");
    (range.write ? writeEnd : readEnd) =
        std::max(range.write ? writeEnd : readEnd, begin + range.bytes);
  }
  item->work = [all = std::vector(copies.begin(), copies.end())] {
    for (const BlockCopy& copy : all)
      moeccl::copyBlocks(copy.dst, copy.dstStride, copy.src, copy.srcStride, copy.bytes,
                         copy.count);
  };
  submit(streamOf(stream), std::move(item));
}

void GpuDouble::reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
                       const std::byte* const* sources, std::size_t stride, std::size_t count,
                       std::size_t bytes, Stream stream) {
  const Lock lock(world_.mutex_);
  auto item = std::make_unique<GpuWorld::Item>();
  item->what = "a reduction of " + std::to_string(count) + " terms of " + bytesText(bytes);
  note({.kind = GpuCall::Kind::reduction, .bytes = bytes});
  std::vector<const std::byte*> terms;
  for (std::size_t term = 0; term < count; ++term) {
    terms.push_back(sources[term * stride]);
    item->ranges.push_back({terms.back(), bytes, false});
  }
  item->ranges.push_back({dst, bytes, true});
  item->work = [=] { moeccl::reduce(op, datatype, dst, terms.data(), 1, terms.size(), bytes); };
  submit(streamOf(stream), std::move(item));
}

void GpuDouble::divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes,
                       std::int64_t divisor, Stream stream) {
  const Lock lock(world_.mutex_);
  auto item = std::make_unique<GpuWorld::Item>();
  item->what = "a division of " + bytesText(bytes) + " by " + std::to_string(divisor);
  note({.kind = GpuCall::Kind::division, .bytes = bytes});
  item->ranges.push_back({data, bytes, true});
  item->work = [=] { moeccl::divide(datatype, data, bytes, divisor); };
  submit(streamOf(stream), std::move(item));
}

void GpuDouble::copyRows(const RowMatrices& matrices, const RowCopies& copies, Stream stream) {
  kernel(
      "a copy of " + std::to_string(copies.count) + " rows",
      [=, this] {
        RowRanges rows(matrices);
        for (std::int64_t i = 0; i < copies.count; ++i) rows.add(copies.from[i], false);
        for (std::int64_t i = 0; i < copies.count; ++i) rows.add(copies.to[i], true);
        rows.list(copies.from, copies.count);
        rows.list(copies.to, copies.count);
        std::vector<GpuWorld::Range> ranges = rows.take();
        if (touchTheSame(ranges)) fault("copies of rows of one launch touch the same bytes");
        return ranges;
      },
      [=] {
        for (std::int64_t i = 0; i < copies.count; ++i)
          copyBytes(matrices.row(copies.to[i]), matrices.row(copies.from[i]), matrices.rowBytes);
      },
      stream);
}

void GpuDouble::addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
                        const RowWeights& weights, Stream stream) {
  kernel(
      "a sum of " + std::to_string(sums.count) + " rows",
      [=, this] {
        RowRanges rows(matrices);
        const std::int32_t first = sums.begins[0], behind = sums.begins[sums.count];
        for (std::int32_t term = first; term < behind; ++term) rows.add(sums.terms[term], false);
        for (std::int64_t i = 0; i < sums.count; ++i) rows.add(sums.to[i], true);
        rows.list(sums.begins, sums.count + 1);
        rows.list(sums.terms + first, behind - first);
        rows.list(sums.to, sums.count);
        for (int matrix = 0; matrix < kRowMatrices; ++matrix)
          rows.list(weights.of[matrix], weights.counts[matrix]);
        std::vector<GpuWorld::Range> ranges = rows.take();
        if (touchTheSame(ranges)) fault("sums of rows of one launch touch the same bytes");
        return ranges;
      },
      [=] {
        std::vector<const std::byte*> terms;
        std::vector<float> factors;
        for (std::int64_t i = 0; i < sums.count; ++i) {
          terms.clear();
          factors.clear();
          for (std::int32_t term = sums.begins[i]; term < sums.begins[i + 1]; ++term) {
            terms.push_back(matrices.row(sums.terms[term]));
            factors.push_back(weights.at(sums.terms[term]));
          }
          std::byte* const to = matrices.row(sums.to[i]);
          if (terms.empty())
            std::memset(to, 0, matrices.rowBytes);
          else
            addWeighted(datatype, to, terms.data(), factors.data(), 1, terms.size(),
                        matrices.rowBytes);
        }
      },
      stream);
}

void GpuDouble::weighGradients(const WeighedRows& rows, float* ofWeights, Stream stream) {
  const auto count = static_cast<std::size_t>(rows.count);
  kernel(
      "weighing " + std::to_string(count) + " gradients",
      [=] {
        return std::vector<GpuWorld::Range>{{rows.gradients, count * rows.rowBytes, true},
                                            {rows.rows, count * rows.rowBytes, false},
                                            {rows.weights, count * sizeof(float), false},
                                            {ofWeights, count * sizeof(float), true}};
      },
      [=] { moeccl::weighGradients(rows, ofWeights); }, stream);
}

void GpuDouble::clear(std::byte* to, std::size_t bytes, Stream stream) {
  kernel(
      "clearing " + bytesText(bytes),
      [=] {
        return std::vector<GpuWorld::Range>{{to, bytes, true}};
      },
      [=] { std::memset(to, 0, bytes); }, stream);
}

namespace {

std::size_t times(std::int64_t count, std::size_t bytes) {
  return static_cast<std::size_t>(count) * bytes;
}

// What a step of latency mode touches, when it begins.
std::vector<GpuWorld::Range> rangesOf(LatencyStep step, const LatencyRows& rows) {
  const std::int64_t runs = std::int64_t{rows.localExperts} * rows.ranks;
  const std::int64_t choices = rows.bucket * rows.choices;
  const auto all = [](const auto* at, std::int64_t count, bool write) {
    return GpuWorld::Range{at, times(count, sizeof *at), write};
  };
  const GpuWorld::Range regions{rows.regions, times(rows.ranks, rows.regionBytes), false},
      stage{rows.stage, times(rows.ranks * rows.bucket * rows.most(), rows.combineBytes),
            step == LatencyStep::pack},
      back{rows.back, times(rows.nodes * rows.bucket, rows.combineBytes),
           step == LatencyStep::sums};
  const auto arrived = [&](const void* at, std::size_t rowBytes, bool write) {
    return GpuWorld::Range{at, times(rows.begins[rows.localExperts], rowBytes), write};
  };
  switch (step) {
    case LatencyStep::choices:
      return {all(rows.chosen, rows.tokens * rows.choices, false),
              all(rows.weights, rows.weighted ? rows.tokens * rows.choices : 0, false),
              {rows.region(rows.rank), rows.headerBytes, true},
              all(rows.loads, rows.experts, true)};
    case LatencyStep::counts:
      return {regions, all(rows.counts, runs, true)};
    case LatencyStep::begins:
      return {all(rows.counts, runs, false), all(rows.firsts, runs, true),
              all(rows.begins, rows.localExperts + 1, true),
              all(rows.loads, rows.experts + 1, true)};
    case LatencyStep::places:
      return {regions, all(rows.firsts, runs, false), all(rows.places, rows.ranks * choices, true)};
    case LatencyStep::rows:
      return {regions, all(rows.places, rows.ranks * choices, false),
              arrived(rows.output, rows.rowBytes, true)};
    case LatencyStep::pack:
      return {regions, all(rows.places, rows.ranks * choices, false),
              arrived(rows.input, rows.combineBytes, false), stage};
    case LatencyStep::sums:
      return {regions,
              stage,
              {rows.terms, times(rows.termRows * rows.bucket, rows.combineBytes), false},
              {rows.sumRows, times(rows.sums * rows.bucket, rows.combineBytes), true},
              back};
    case LatencyStep::finish:
      return {regions, back, {rows.output, times(rows.tokens, rows.combineBytes), true}};
  }
  return {};
}

// Calls function(expert, source, token, choice) by expert, source and token.
template <typename Function>
void eachRow(const LatencyRows& rows, const Function& function) {
  for (std::int32_t expert = 0; expert < rows.localExperts; ++expert)
    for (std::int32_t source = 0; source < rows.ranks; ++source)
      for (std::int64_t token = 0; token < rows.bucket; ++token)
        if (const std::int32_t choice = rows.find(source, token, rows.firstExpert + expert);
            choice >= 0)
          function(expert, source, token, choice);
}

void addUp(const LatencyRows& rows, std::byte* to, const std::vector<const std::byte*>& terms,
           const std::vector<float>& weights) {
  if (terms.empty())
    std::memset(to, 0, rows.combineBytes);
  else
    addWeighted(rows.datatype, to, terms.data(), weights.data(), 1, terms.size(),
                rows.combineBytes);
}

void runOnHost(LatencyStep step, const LatencyRows& rows) {
  const std::int64_t runs = std::int64_t{rows.localExperts} * rows.ranks;
  switch (step) {
    case LatencyStep::choices:
      for (std::int64_t token = 0; token < rows.bucket; ++token) {
        rows.writeChoices(token);
        for (std::int32_t c = 0; c < rows.choices; ++c)
          if (const std::int32_t expert = rows.expertsOf(rows.rank, token)[c]; expert >= 0)
            ++rows.loads[expert];
      }
      return;
    case LatencyStep::counts:
      std::fill_n(rows.counts, runs, 0);
      return eachRow(rows, [&](std::int32_t expert, std::int32_t source, std::int64_t,
                               std::int32_t) { ++rows.counts[expert * rows.ranks + source]; });
    case LatencyStep::begins: {
      std::int64_t before = 0;
      for (std::int64_t run = 0; run < runs; ++run) {
        if (run % rows.ranks == 0) rows.begins[run / rows.ranks] = before;
        rows.firsts[run] = before;
        before += rows.counts[run];
      }
      rows.begins[rows.localExperts] = before;
      rows.loads[rows.experts] += before;
      return;
    }
    case LatencyStep::places: {
      std::int32_t place = 0;
      return eachRow(
          rows, [&](std::int32_t, std::int32_t source, std::int64_t token, std::int32_t choice) {
            rows.places[rows.choiceAt(source, token, choice)] = place++;
          });
    }
    case LatencyStep::rows:
      return eachRow(
          rows, [&](std::int32_t, std::int32_t source, std::int64_t token, std::int32_t choice) {
            const std::int32_t place = rows.places[rows.choiceAt(source, token, choice)];
            copyBytes(rows.output + times(place, rows.rowBytes),
                      rows.region(source) + rows.headerBytes + times(token, rows.rowBytes),
                      rows.rowBytes);
          });
    case LatencyStep::pack:
      return eachRow(rows, [&](std::int32_t expert, std::int32_t source, std::int64_t token,
                               std::int32_t choice) {
        const std::int32_t place = rows.places[rows.choiceAt(source, token, choice)];
        const std::int64_t row =
            rows.stageRow(source, token, rows.before(source, token, rows.firstExpert + expert));
        copyBytes(rows.stage + times(row, rows.combineBytes),
                  rows.input + times(place, rows.combineBytes), rows.combineBytes);
      });
    case LatencyStep::sums:
      for (std::int64_t sum = 0; sum < rows.sums; ++sum)
        for (std::int64_t token = 0; token < rows.bucket; ++token) {
          std::vector<const std::byte*> terms;
          std::vector<float> weights;
          std::byte* const to = rows.eachTerm(sum, token, [&](const std::byte* from, float weight) {
            terms.push_back(from);
            weights.push_back(weight);
          });
          if (!terms.empty()) addUp(rows, to, terms, weights);
        }
      return;
    case LatencyStep::finish:
      for (std::int64_t token = 0; token < rows.tokens; ++token) {
        std::vector<const std::byte*> terms;
        for (std::int32_t node = 0; node < rows.nodes; ++node)
          if (rows.has(token, node))
            terms.push_back(rows.back + times(node * rows.bucket + token, rows.combineBytes));
        addUp(rows, rows.output + times(token, rows.combineBytes), terms,
              std::vector<float>(terms.size(), 1));
      }
      return;
  }
}

}  // namespace

void GpuDouble::runLatency(LatencyStep step, const LatencyRows& rows, Stream stream) {
  kernel(
      "step " + std::to_string(static_cast<int>(step)) + " of latency mode",
      [=] { return rangesOf(step, rows); }, [=] { runOnHost(step, rows); }, stream);
}

void GpuDouble::quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
                         std::size_t rowCount, std::size_t elements, std::byte* quantised,
                         Stream stream) {
  kernel(
      "quantising " + std::to_string(rowCount) + " rows",
      [=] {
        return std::vector<GpuWorld::Range>{{rows, rowCount * elements * sizeOf(from), false},
                                            {quantised, rowCount * quantisedBytes(elements), true}};
      },
      [=] { moeccl::quantise(to, from, rows, rowCount, elements, quantised); }, stream);
}

void GpuDouble::dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                           std::size_t rowCount, std::size_t elements, std::byte* rows,
                           Stream stream) {
  kernel(
      "dequantising " + std::to_string(rowCount) + " rows",
      [=] {
        return std::vector<GpuWorld::Range>{{quantised, rowCount * quantisedBytes(elements), false},
                                            {rows, rowCount * elements * sizeOf(to), true}};
      },
      [=] { moeccl::dequantise(from, to, quantised, rowCount, elements, rows); }, stream);
}

// ---- NCCL ----

Gpu::Id GpuDouble::newId() {
  const Lock lock(world_.mutex_);
  Id id{};
  const std::string name = "c" + std::to_string(++world_.ids_);
  name.copy(id.data(), id.size() - 1);
  return id;
}

Gpu::Comm GpuDouble::join(const Id& id, int ranks, int rank, const Patience&) {
  const Lock lock(world_.mutex_);
  requireCurrent();
  auto comm = std::make_unique<CommState>(CommState{id.data(), ranks, rank});
  CommState* const handle = comm.get();
  comms_[handle] = std::move(comm);
  return handle;
}

Gpu::Comm GpuDouble::split(Comm comm, int color, int key, Purpose purpose,
                           const Patience& patience) {
  std::unique_lock lock(world_.mutex_);
  requireCurrent();
  if (capture_) refuse("splits a communicator during a capture");
  CommState& parent = commOf(comm);
  if (parent.purpose != Purpose::parts) refuse("splits a communicator that blocks");
  const std::string name = parent.name + "." + std::to_string(parent.splits++);
  auto part = std::make_unique<CommState>(CommState{name, parent.ranks, parent.rank, purpose});
  if (world_.options_.threads) {
    auto& choices = world_.splits_[name];
    choices[parent.rank] = {color, key};
    world_.changed_.notify_all();
    const auto all = [&] { return static_cast<int>(choices.size()) == parent.ranks; };
    const bool forEver = patience.timeoutMs < 0;
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::milliseconds(forEver ? 30000 : patience.timeoutMs);
    while (!world_.changed_.wait_for(lock, std::chrono::milliseconds(10), all)) {
      checkPatience(lock, patience);
      if (std::chrono::steady_clock::now() < end) continue;
      if (forEver) refuse("not all ranks come to split a communicator");
      throw Error(moecclTimeout, "the double's split: not all ranks have come to it");
    }
    part->name += "." + std::to_string(color);
    part->ranks = part->rank = 0;
    for (const auto& [rank, choice] : choices) {
      if (choice.first != color) continue;
      ++part->ranks;
      if (std::pair(choice.second, rank) < std::pair(key, parent.rank)) ++part->rank;
    }
  }
  if (color < 0) return nullptr;
  CommState* const handle = part.get();
  comms_[handle] = std::move(part);
  noteContext();
  note({.kind = GpuCall::Kind::split});
  return handle;
}

void GpuDouble::settle(Comm comm, const Patience&) {
  const Lock lock(world_.mutex_);
  commOf(comm);
  note({.kind = GpuCall::Kind::settle});
}

void GpuDouble::drop(const CommState& comm, bool abort) {
  const auto uses = [&](const std::unique_ptr<GpuWorld::Item>& item) {
    return std::ranges::any_of(item->messages, [&](const auto& m) { return m->comm == comm.name; });
  };
  for (GpuWorld::Stream* stream : streams_)
    for (std::unique_ptr<GpuWorld::Item>& item : stream->queue) {
      if (!uses(item)) continue;
      if (!abort) world_.problem("a communicator is destroyed that has work: " + item->what);
      for (const auto& message : item->messages) {
        message->done = true;
        if (message->partner != nullptr) message->partner->partner = nullptr;
      }
    }
  // Whoever calls on this rank later meets nobody; the others still meet each other.
  if (abort)
    std::erase_if(world_.matching_, [&](const auto& pair) {
      const auto& [name, from, to] = pair.first;
      return name == comm.name && (from == comm.rank || to == comm.rank);
    });
}

void GpuDouble::awaitGraphs(std::unique_lock<std::mutex>& lock, const CommState& comm) {
  if (!world_.runUntil(lock, [&] { return comm.graphs == 0; }))
    world_.problem("a communicator is freed that a graph uses: NCCL would wait for ever");
}

bool GpuDouble::hasKernels() const {
  return std::ranges::any_of(streams_, [](const auto* stream) {
    return !stream->queue.empty() && stream->queue.front()->kind == GpuWorld::Kind::group &&
           stream->queue.front()->started;
  });
}

void GpuDouble::destroy(Comm comm) noexcept {
  std::unique_lock lock(world_.mutex_);
  const auto known = comms_.find(static_cast<CommState*>(comm));
  if (known == comms_.end()) return world_.problem("a communicator is freed that is not there");
  noteContext();
  world_.runLocked();
  if (!known->second->registered.empty())
    world_.problem("a communicator is destroyed before memory is deregistered");
  drop(*known->second, false);
  awaitGraphs(lock, *known->second);
  comms_.erase(known);
  world_.changed_.notify_all();
}

void GpuDouble::revoke(std::span<const Comm> comms) noexcept {
  if (!revokes()) return;
  const Lock lock(world_.mutex_);
  noteContext();
  world_.runLocked();
  for (Comm comm : comms) {
    const auto known = comms_.find(static_cast<CommState*>(comm));
    if (known == comms_.end()) return world_.problem("a communicator is revoked that is not there");
    if (std::exchange(known->second->revoked, true))
      world_.problem("a communicator is revoked a second time");
    drop(*known->second, true);
  }
  world_.changed_.notify_all();
}

void GpuDouble::abort(std::span<const Comm> comms) noexcept {
  std::unique_lock lock(world_.mutex_);
  noteContext();
  if (world_.options_.slowAborts && !comms.empty() &&
      static_cast<CommState*>(comms[0])->purpose == Purpose::messages)
    world_.changed_.wait_for(lock, std::chrono::milliseconds(300), [] { return false; });
  world_.runLocked();
  for (Comm comm : comms) {
    const auto known = comms_.find(static_cast<CommState*>(comm));
    if (known == comms_.end()) return world_.problem("a communicator is freed that is not there");
    if (known->second->inside > 0)
      world_.problem("a communicator is aborted while another thread is in a call about it");
    known->second->revoked = true;
    drop(*known->second, true);
  }
  world_.changed_.notify_all();
  world_.runLocked();
  // Memory is freed, which waits for the device.
  if (world_.options_.threads && !comms.empty() &&
      !world_.runUntil(lock, [&] { return !hasKernels(); }))
    world_.problem("an abort waits for a kernel of another communicator, which nobody ends");
  for (Comm comm : comms) {
    const auto known = comms_.find(static_cast<CommState*>(comm));
    awaitGraphs(lock, *known->second);
    world_.runUntil(lock, [&] { return known->second->inside == 0; });
    comms_.erase(known);
  }
  world_.changed_.notify_all();
}

int GpuDouble::ranks(Comm comm) {
  const Lock lock(world_.mutex_);
  return commOf(comm).ranks;
}
int GpuDouble::rank(Comm comm) {
  const Lock lock(world_.mutex_);
  return commOf(comm).rank;
}
int GpuDouble::device(Comm comm) {
  const Lock lock(world_.mutex_);
  commOf(comm);
  return number_;
}

moecclResult_t GpuDouble::asyncError(Comm comm, std::string* text) {
  if (const auto hook = std::exchange(onAsyncError_, nullptr)) hook();
  const Lock lock(world_.mutex_);
  commOf(comm);
  *text = world_.brokenText_;
  return world_.broken_;
}

void GpuDouble::groupStart() {
  const Lock lock(world_.mutex_);
  note({.kind = GpuCall::Kind::groupStart});
  ++world_.groups_[std::this_thread::get_id()].depth;
}

void GpuDouble::message(bool isSend, std::byte* data, std::size_t bytes, int peer, Comm comm,
                        Stream stream) {
  const Lock lock(world_.mutex_);
  CommState& on = commOf(comm);
  const std::string what = (isSend ? "send of " : "receive of ") + bytesText(bytes) +
                           (isSend ? " to " : " from ") + std::to_string(peer);
  GpuWorld::Stream* const where = &streamOf(stream);
  note({.kind = isSend ? GpuCall::Kind::send : GpuCall::Kind::receive,
        .stream = where->number,
        .urgent = where->urgent,
        .peer = peer,
        .bytes = bytes});
  if (on.revoked) throw Error(moecclInvalidUsage, "the double's " + what + ": revoked");
  // It has other blocks and another way to end.
  if (on.purpose != Purpose::messages) refuse("a " + what + " on a communicator made for parts");
  requireWhole(what);
  GpuWorld::Group& group = world_.groups_[std::this_thread::get_id()];
  if (group.depth != 1) refuse("a " + what + (group.depth < 1 ? " outside a group" : " in two"));
  if (peer < 0 || peer >= on.ranks || peer == on.rank)
    refuse("a " + what + " of " + std::to_string(on.ranks) + " ranks");
  auto launch = std::ranges::find_if(group.launches, [&](const GpuWorld::Waiting& w) {
    return w.stream == where && w.comm == &on;
  });
  if (launch == group.launches.end()) {
    group.launches.push_back({where, &on, std::make_unique<GpuWorld::Item>()});
    launch = group.launches.end() - 1;
    launch->item->kind = GpuWorld::Kind::group;
    launch->item->what = "a group with a " + what;
  }
  for (const auto& other : launch->item->messages)
    if ((!isSend || !other->isSend) && data < other->data + other->bytes &&
        other->data < data + bytes)
      refuse("a " + what + " touches the bytes of another message of its group");
  auto message = std::make_unique<GpuWorld::Message>();
  message->isSend = isSend;
  message->data = data;
  message->bytes = bytes;
  message->comm = on.name;
  message->from = isSend ? on.rank : peer;
  message->to = isSend ? peer : on.rank;
  launch->item->messages.push_back(std::move(message));
}

void GpuDouble::send(const std::byte* from, std::size_t bytes, int peer, Comm comm, Stream stream) {
  message(true, const_cast<std::byte*>(from), bytes, peer, comm, stream);
}

void GpuDouble::recv(std::byte* to, std::size_t bytes, int peer, Comm comm, Stream stream) {
  message(false, to, bytes, peer, comm, stream);
}

void GpuDouble::groupEnd(Comm comm, const Patience& patience) {
  std::unique_lock lock(world_.mutex_);
  note({.kind = GpuCall::Kind::groupEnd});
  GpuWorld::Group& group = world_.groups_[std::this_thread::get_id()];
  if (group.depth == 0) refuse("ends a group that has not begun");
  if (--group.depth > 0) return;
  std::vector<GpuWorld::Waiting> launches = std::exchange(group.launches, {});
  for (const GpuWorld::Waiting& launch : launches) {
    if (launch.comm != comm) refuse("ends a group of another communicator");
    connect(lock, commOf(comm), "", launch.item->messages, patience);
  }
  for (GpuWorld::Waiting& launch : launches) {
    std::vector<int> peers;
    for (const auto& message : launch.item->messages)
      if (message->isSend) peers.push_back(message->to);
    note({.kind = GpuCall::Kind::sends, .stream = launch.stream->number, .peers = peers});
    submit(*launch.stream, std::move(launch.item));
  }
}

void GpuDouble::connect(std::unique_lock<std::mutex>& lock, CommState& comm, const std::string& way,
                        const std::vector<std::unique_ptr<GpuWorld::Message>>& messages,
                        const Patience& patience) {
  if (!world_.options_.threads) return;
  std::vector<const std::array<bool, 2>*> sides;
  for (const auto& message : messages) {
    auto& both = world_.connections_[{message->comm + way, message->from, message->to}];
    both[message->isSend] = true;
    sides.push_back(&both);
  }
  world_.changed_.notify_all();
  const auto met = [&] {
    return std::ranges::all_of(sides, [](const auto* both) { return (*both)[0] && (*both)[1]; });
  };
  struct Inside {
    explicit Inside(GpuDouble& of, CommState& about) : device(of), comm(about) { ++comm.inside; }
    ~Inside() {
      --comm.inside;
      device.world_.changed_.notify_all();
    }
    GpuDouble& device;
    CommState& comm;
  } inside(*this, comm);
  if (!revokes()) return connectPatiently(lock, met, patience);
  if (!world_.runUntil(lock, [&] { return met() || comm.revoked; }))
    refuse("nobody ends the wait for a rank that never comes");
  if (comm.revoked)
    throw Error(moecclInternalError, "the double's group: its communicator has been revoked");
}

void GpuDouble::connectPatiently(std::unique_lock<std::mutex>& lock,
                                 const std::function<bool()>& met, const Patience& patience) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point begin = Clock::now(); !met();) {
    world_.changed_.wait_for(lock, std::chrono::milliseconds(1));
    world_.runLocked();
    if (met()) return;
    checkPatience(lock, patience);
    if (patience.timeoutMs >= 0 &&
        Clock::now() - begin > std::chrono::milliseconds(patience.timeoutMs))
      throw Error(moecclTimeout, "the double's group: not all ranks have come to it");
  }
}

bool GpuDouble::has(Native what) const {
  return what != Native::allToAll || !world_.options_.withoutAllToAll;
}

// One launch, in which ranks send each other what their outputs need. It writes when all is there,
// as NCCL may do early, so the output is checked as written from the beginning.
void GpuDouble::run(Native what, const std::byte* from, std::byte* to, std::size_t count,
                    moecclDataType_t datatype, moecclRedOp_t op, Comm comm, Stream stream,
                    const Patience& patience) {
  static constexpr const char* kNames[] = {"all-to-all", "all-gather", "reduce-scatter",
                                           "all-reduce"};
  std::unique_lock lock(world_.mutex_);
  requireCurrent();
  CommState& on = commOf(comm);
  const std::size_t bytes = count * sizeOf(datatype);
  const std::string name =
      std::string("NCCL's ") + kNames[static_cast<int>(what)] + " of " + bytesText(bytes);
  note({.kind = GpuCall::Kind::native, .bytes = bytes, .name = kNames[static_cast<int>(what)]});
  requireWhole(name);
  if (!has(what)) refuse(name + ", which this NCCL does not have");
  if (world_.groups_[std::this_thread::get_id()].depth > 0) refuse(name + " in a group");
  const bool gathers = what == Native::allToAll || what == Native::allGather;
  const bool cuts = what == Native::allToAll || what == Native::reduceScatter;
  const auto place = [bytes](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  const auto blocks = static_cast<std::size_t>(on.ranks);
  const auto arrived = std::make_shared<std::vector<std::byte>>(blocks * bytes);
  auto item = std::make_unique<GpuWorld::Item>();
  item->kind = GpuWorld::Kind::group;
  item->what = name;
  const std::byte* const own = from + (cuts ? place(on.rank) : 0);
  item->ranges = {{own, bytes, false}, {to, gathers ? blocks * bytes : bytes, true}};
  for (int peer = 0; peer < on.ranks; ++peer) {
    if (peer == on.rank) continue;
    for (const bool isSend : {true, false}) {
      auto message = std::make_unique<GpuWorld::Message>();
      message->isSend = isSend;
      message->data = isSend ? const_cast<std::byte*>(from) + (cuts ? place(peer) : 0)
                             : arrived->data() + place(peer);
      message->bytes = bytes;
      message->comm = on.name;
      message->from = isSend ? on.rank : peer;
      message->to = isSend ? peer : on.rank;
      message->inside = true;
      item->messages.push_back(std::move(message));
    }
  }
  connect(lock, on, kNames[static_cast<int>(what)], item->messages, patience);
  item->work = [=, rank = on.rank] {
    copyBytes(arrived->data() + place(rank), own, bytes);
    if (gathers) return copyBytes(to, arrived->data(), blocks * bytes);
    std::vector<const std::byte*> terms;
    for (std::size_t i = 0; i < blocks; ++i) terms.push_back(arrived->data() + i * bytes);
    moeccl::reduce(op, datatype, to, terms.data(), 1, terms.size(), bytes);
  };
  submit(streamOf(stream), std::move(item));
}

// ---- Captures ----

void GpuDouble::beginCapture(Stream stream, bool blocking) {
  const Lock lock(world_.mutex_);
  if (capture_) refuse("begins a capture within another");
  GpuWorld::Stream& origin = streamOf(stream);
  capture_ = std::make_unique<Capture>();
  capture_->id = ++world_.ids_;
  capture_->origin = &origin;
  capture_->blocking = blocking;
  origin.capture = capture_->id;
}

void GpuDouble::invalidateCapture(Stream stream) {
  const Lock lock(world_.mutex_);
  if (!capture_ || streamOf(stream).capture != capture_->id) refuse("has no such capture");
  capture_->invalid = true;
}

std::shared_ptr<GpuDouble::Graph> GpuDouble::endCapture(Stream stream) {
  const Lock lock(world_.mutex_);
  GpuWorld::Stream& origin = streamOf(stream);
  if (!capture_ || capture_->origin != &origin) refuse("ends a capture that it has not begun");
  for (GpuWorld::Stream* other : streams_) {
    if (other->capture != capture_->id) continue;
    other->capture = 0;
    // A wait of its own alone is nothing to be waited for.
    if (!capture_->invalid && capture_->after[&origin][other] < capture_->after[other][other])
      world_.problem("a capture ends while a stream has not been joined");
  }
  const std::unique_ptr<Capture> done = std::move(capture_);
  if (done->invalid) return nullptr;
  auto graph = std::make_shared<Graph>(*this);
  graph->origin = &origin;
  graph->items = std::move(done->items);
  graph->kept = std::move(done->kept);
  addGraphs(*graph, 1);
  return graph;
}

void GpuDouble::addGraphs(const Graph& graph, int change) {
  std::set<std::string> names;
  for (const GpuWorld::Captured& captured : graph.items)
    for (const auto& message : captured.item->messages) names.insert(message->comm);
  for (const auto& [handle, comm] : comms_)
    if (names.contains(comm->name)) comm->graphs += change;
}

GpuDouble::Graph::~Graph() {
  const Lock lock(device.world_.mutex_);
  device.addGraphs(*this, -1);
  device.world_.changed_.notify_all();
}

void GpuDouble::replay(const Graph& graph, Stream stream) {
  const Lock lock(world_.mutex_);
  std::map<GpuWorld::Stream*, GpuWorld::Stream*> streams{{graph.origin, &streamOf(stream)}};
  std::map<std::pair<GpuWorld::Event*, int>, std::shared_ptr<GpuWorld::Event>> events;
  for (const GpuWorld::Captured& captured : graph.items) {
    GpuWorld::Stream*& on = streams[captured.stream];
    if (on == nullptr) on = &world_.newStream(*this);
    const GpuWorld::Item& from = *captured.item;
    auto item = std::make_unique<GpuWorld::Item>();
    item->kind = from.kind;
    item->what = from.what + " (replayed)";
    item->work = from.work;
    item->ranges = from.ranges;
    item->rangesNow = from.rangesNow;
    if (from.event) {
      auto& event = events[{from.event.get(), from.version}];
      if (!event) event = std::make_shared<GpuWorld::Event>();
      item->event = event;
    }
    for (const auto& message : from.messages)
      item->messages.push_back(std::make_unique<GpuWorld::Message>(*message));
    world_.enqueue(*on, std::move(item));
  }
}

}  // namespace moeccl::test

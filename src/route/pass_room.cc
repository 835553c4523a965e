// The memory of a pass: makes room, which grows once it is known how many rows come, and finds
// where each table lies and how long it is.
#include <algorithm>
#include <new>

#include "src/route/pass_run.h"

namespace moeccl::schedules {

void PassRun::makeRoom() {
  for (PassMemory* memory : {&own_, &shared_}) memory->resize(buffers().size());
  for (std::size_t i = 0; i < buffers().size(); ++i) reserve(i, buffers()[i].bytes);
  if (keptRoom() > 0) reserveKept();
  std::size_t widest = 0;
  eachHalf([&](const Half& half) {
    times_.resize(std::max(times_.size(), half.schedule().phases.size() + 1));
    for (const Phase& phase : half.schedule().phases)
      widest = std::max({widest, phase.reads.size(), phase.writes.size()});
  });
  reads_.resize(widest);
  writes_.resize(widest);
  first_ = std::make_unique<bool[]>(widest);
  begins_.resize(static_cast<std::size_t>(sizes_.at(Dim::localExperts)) + 1);
  const auto runs = static_cast<std::size_t>(
      elementCount({groups_.esp.ranks, groups_.ep.ranks, sizes_.at(Dim::localExperts)}));
  hostCounts_.resize(runs);
  copies_.reserve(runs);
  runs_.reserve(runs);
  const auto most = static_cast<std::size_t>(std::max(groups_.ep.ranks, groups_.esp.ranks));
  for (auto* list : {&sendCounts_, &sendBegins_, &recvCounts_, &recvBegins_}) list->resize(most);
}

void PassRun::reserve(std::size_t buffer, std::int64_t bytes) {
  PassMemory& memory = memoryFor(buffer);
  std::size_t& room = memory.room[buffer];
  const auto needed = static_cast<std::size_t>(bytes);
  if (needed <= room) return;
  const bool dropless = buffers()[buffer].late && keptRoom() == 0;
  const auto textOf = [&](const std::string& why) {
    const std::int64_t embedding = sizes_.at(Dim::embedding);
    return "there is no memory for " + std::to_string(bytes / embedding / mover_.elementBytes()) +
           " rows of " + std::to_string(embedding) +
           " elements, which experts of this rank are given or their tokens need; the layer is "
           "dropless, so a hot expert is given all that choose it" +
           why;
  };
  try {
    mover_.grow(memory.memory[buffer], room, needed);
  } catch (const std::bad_alloc&) {
    if (!dropless) throw;
    throw Error(moecclSystemError, textOf(""));
  } catch (const Error& e) {  // a GPU's
    if (!dropless) throw;
    throw Error(e.result(), textOf(std::string(": ") + e.what()));
  }
}

// Where choices can be dropped there is room for all rows from the beginning.
void PassRun::reserveKept() {
  const std::int64_t row = sizes_.at(Dim::embedding) * mover_.elementBytes();
  for (std::size_t i = 0; i < buffers().size(); ++i) {
    const PassBuffer& buffer = buffers()[i];
    if (!buffer.late) continue;
    const std::int64_t one = std::min(keptRoom(), sizes_.at(Dim::tokens));
    reserve(i, (buffer.kept ? keptRoom() : one) * row);
  }
}

void* PassRun::at(int index) const {
  const Place& place = half_->binding.place(index);
  std::byte* base = nullptr;
  switch (place.storage) {
    case Storage::nothing:
    case Storage::view:
      return nullptr;
    case Storage::input:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.input));
      break;
    case Storage::output:
      base = static_cast<std::byte*>(callers_.output);
      break;
    case Storage::rows:
      base = static_cast<std::byte*>(callers_.rows);
      break;
    case Storage::results:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.results));
      break;
    case Storage::again:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.again));
      break;
    case Storage::sums:
      if (work_.own() != nullptr) base = reinterpret_cast<std::byte*>(work_.own()->sums());
      break;
    case Storage::buffers: {
      const auto buffer = static_cast<std::size_t>(place.buffer);
      base = static_cast<std::byte*>(memoryFor(buffer).memory[buffer].get());
      if (expert_ >= 0 && buffers()[buffer].kept && has(table(index), Dim::keptRows))
        base += work_.keptBegins()[static_cast<std::size_t>(expert_)] * sizes_.at(Dim::embedding) *
                mover_.elementBytes();
      break;
    }
  }
  return base == nullptr ? nullptr : base + place.offset;
}

std::int64_t PassRun::rowsOf(int index) const {
  if (hasRuns(table(index))) return layout(index).rows();
  const std::span<const std::int64_t> begins = work_.keptBegins();
  const auto buffer = static_cast<std::size_t>(half_->binding.place(index).buffer);
  if (buffers()[buffer].kept || expert_ < 0) return begins.back();
  std::int64_t most = 0;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    most = std::max(most, begins[i + 1] - begins[i]);
  return most;
}

std::int64_t PassRun::elements(int index) const {
  return half_->binding.late(index) ? rowsOf(index) * sizes_.at(Dim::embedding)
                                    : sizes_.elements(table(index).shape);
}

// A reduce-scatter of rows gets all summands before it adds them.
std::int64_t PassRun::summands(int index) const {
  for (const Phase& phase : schedule().phases)
    if (phase.kind == Kind::exchange && phase.collective == Collective::reduceScatter &&
        phase.writes[0] == index)
      return groups_.of(phase.group).ranks;
  return 1;
}

void PassRun::reserveRows(int index) {
  const Place& place = half_->binding.place(index);
  if (!half_->binding.late(index) || place.storage != Storage::buffers) return;
  const auto buffer = static_cast<std::size_t>(place.buffer);
  const std::int64_t bytes = elements(index) * mover_.elementBytes() * summands(index);
  if (static_cast<std::size_t>(bytes) <= memoryFor(buffer).room[buffer]) return;
  // Queued work may still use what lay there. The phase that is next counts as queued.
  for (std::size_t i = 1; i < queued_.size(); ++i) {
    if (joined_[i] >= queued_[i]) continue;
    join(static_cast<int>(i), schedule().phases[static_cast<std::size_t>(queued_[i])].name);
    joined_[i] = std::min(joined_[i], static_cast<int>(next_) - 1);
  }
  reserve(buffer, bytes);
}

}  // namespace moeccl::schedules

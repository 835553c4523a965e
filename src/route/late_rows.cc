// Rows whose number only counts tell: whose they are in each table, and how many, once the counts
// are here.
#include <algorithm>

#include "src/route/pass_run.h"

namespace moeccl::schedules {

// Rows are the rank's own until they cross to their experts, and again once they are back.
void PassRun::makeLayouts(Half& half, const Half* forward) {
  const Schedule& schedule = half.schedule();
  half.written.resize(schedule.tables.size());
  half.layouts.resize(schedule.tables.size());
  std::vector<bool> own(schedule.tables.size());
  for (std::size_t i = 0; i < own.size() && forward != nullptr; ++i)
    for (std::size_t j = 0; j < forward->layouts.size(); ++j)
      if (forward->layouts[j] && forward->schedule().tables[j].name == schedule.tables[i].name)
        own[i] = forward->layouts[j]->isOwn();
  for (const Phase& phase : schedule.phases) {
    // Routing brings rows at once to where they are given.
    const bool makesRows = !phase.routed && (phase.kind == Kind::permute ||
                                             (phase.kind == Kind::combine && phase.backward));
    const bool crosses = phase.kind == Kind::exchange && phase.collective == Collective::allToAll;
    const auto read = static_cast<std::size_t>(phase.reads[0]);
    own[static_cast<std::size_t>(phase.writes[0])] = makesRows || own[read] != crosses;
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    if (hasRuns(schedule.tables[i]))
      half.layouts[i].emplace(schedule.tables[i].shape, own[i],
                              counts_[static_cast<std::size_t>(schedule.tables[i].chunk)]);
}

// Before a phase that deals with rows: finds out how many there are, and makes room for those that
// the phase makes.
void PassRun::bind(const Phase& phase) {
  if (!bindRowsOf(phase)) return;
  for (const int made : phase.writes) reserveRows(made);
}

// Whether the phase deals with rows that are bound late.
bool PassRun::bindRowsOf(const Phase& phase) {
  const auto late = [&](int index) { return half_->binding.late(index); };
  if (std::ranges::none_of(phase.reads, late) && std::ranges::none_of(phase.writes, late))
    return false;
  const int counts = phase.reads.back();
  if (table(counts).element == Element::count64 && table(counts).role == Role::made)
    bindRows(counts);
  return true;
}

// Where the host waits for streams, it does so once, for the counts of all chunks: rows of one that
// are queued would be waited for, too.
void PassRun::bindRows(int counts) {
  if (bound_[static_cast<std::size_t>(table(counts).chunk)] != 0) return;
  if (!mover_.onStreams()) return bindChunk(counts);
  std::vector<int> arrived{counts};
  for (std::size_t i = 0; i < next_; ++i) {
    const Phase& phase = schedule().phases[i];
    const int made = phase.writes.empty() ? counts : phase.writes[0];
    if (made == counts || table(made).name != table(counts).name) continue;
    if (phase.stream != 0 && joined_[static_cast<std::size_t>(phase.stream)] < static_cast<int>(i))
      join(phase.stream, phase.name);
    arrived.push_back(made);
  }
  for (const int each : arrived) bindChunk(each);
}

void PassRun::bindChunk(int counts) {
  const int chunk = table(counts).chunk;
  char& bound = bound_[static_cast<std::size_t>(chunk)];
  if (bound != 0) return;
  bound = 1;
  if (at(counts) != nullptr) readCounts(counts);
  eachHalf([&](Half& half) {
    for (std::size_t i = 0; i < half.layouts.size(); ++i)
      if (half.layouts[i] && half.schedule().tables[i].chunk == chunk) half.layouts[i]->bind();
  });
  // Nothing but this chunk's rows lies there: all of it grows while nothing is under way.
  if (counts_.size() == 1)
    for (int i = 0; i < static_cast<int>(schedule().tables.size()); ++i)
      if (table(i).role != Role::kept) reserveRows(i);
}

// The one wait of the chunk: what the gate has counted is there then, too.
void PassRun::readCounts(int index) {
  const auto chunk = static_cast<std::size_t>(table(index).chunk);
  const int ownCounts = ownCounts_[chunk];
  const std::span given(hostCounts_.data(), static_cast<std::size_t>(elements(index)));
  mover_.toHost(hostCounts_.data(), at(index), given.size_bytes(), stream_);
  counts_[chunk].setGiven(given, table(index).shape);
  const std::span own(hostCounts_.data(), static_cast<std::size_t>(elements(ownCounts)));
  work_.readCounts(table(ownCounts), own);
  counts_[chunk].setOwn(own, table(ownCounts).shape);
}

}  // namespace moeccl::schedules

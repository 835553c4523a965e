// Cuts the tokens of a pass into chunks, whose exchanges go on beside other chunks' experts.
#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

struct Cut {
  Dim whole, chunk;
};
using Cuts = std::span<const Cut>;
constexpr Cut kOfParts[] = {{Dim::partTokens, Dim::chunkTokens},
                            {Dim::slots, Dim::chunkSlots},
                            {Dim::partRows, Dim::chunkRows}};
constexpr Cut kOfBatches[] = {{Dim::tokens, Dim::batchChunkTokens},
                              {Dim::batchRows, Dim::batchChunkRows}};

bool has(const Schedule& schedule, Dim dim) {
  return std::ranges::any_of(schedule.tables,
                             [dim](const Table& table) { return has(table, dim); });
}

class Chunks {
 public:
  Chunks(const Schedule& whole, Cuts cuts, int chunks) : whole_(whole), cuts_(cuts), made_(whole) {
    made_.schedule().chunks = chunks;
    std::vector<std::size_t> before, after;
    std::vector<std::vector<std::size_t>> stages(1);
    std::size_t starts = 1;  // stages until ranks know each other's counts
    for (std::size_t i = 0; i < whole.phases.size(); ++i) {
      const Phase& phase = whole.phases[i];
      if (!touches(phase)) {
        (stages[0].empty() ? before : after).push_back(i);
        continue;
      }
      stages.back().push_back(i);
      if (phase.kind == Kind::exchange && isCounts(phase.writes[0])) starts = stages.size();
      // Ranks tell each other what tokens chose before rows are under way.
      if (goesBeside(phase) || phase.kind == Kind::route) stages.emplace_back();
    }
    for (const std::size_t i : before) repeat(i, 0);
    // All start, so that whoever waits for counts does so while no rows are under way; in between
    // each stage of a chunk goes beside the next one of the chunk before; and all end.
    const std::size_t last = stages.size() - 1, between = last > starts ? last - starts : 0;
    const auto run = [&](std::size_t stage, std::size_t chunk) {
      for (const std::size_t i : stages[stage]) repeat(i, static_cast<int>(chunk));
    };
    const auto count = static_cast<std::size_t>(chunks);
    for (std::size_t stage = 0; stage < starts; ++stage)
      for (std::size_t chunk = 0; chunk < count; ++chunk) run(stage, chunk);
    for (std::size_t turn = 0; between > 0 && turn + 1 < count + between; ++turn)
      for (std::size_t stage = 0; stage < between && stage <= turn; ++stage)
        if (turn - stage < count) run(starts + stage, turn - stage);
    for (std::size_t chunk = 0; last >= starts && chunk < count; ++chunk) run(last, chunk);
    for (const std::size_t i : after) repeat(i, 0);
    made_.schedule().input = copy(whole.input, 0);
    made_.schedule().output = copy(whole.output, 0);
  }

  Schedule build() { return made_.build(); }

 private:
  static bool goesBeside(const Phase& phase) {
    return phase.routed || phase.kind == Kind::exchange;
  }

  // Rows that are bound late are counted anew for each chunk. The pass's input and output are
  // whole.
  bool isCut(int index) const {
    const Table& table = whole_.tables[static_cast<std::size_t>(index)];
    if (index == whole_.input || index == whole_.output) return false;
    return isCounts(index) ||
           std::ranges::any_of(cuts_, [&](const Cut& cut) { return has(table, cut.whole); });
  }
  bool isCounts(int index) const {
    return whole_.tables[static_cast<std::size_t>(index)].element == Element::count64;
  }
  bool touches(const Phase& phase) const {
    const auto cut = [&](int table) { return isCut(table); };
    return std::ranges::any_of(phase.reads, cut) || std::ranges::any_of(phase.writes, cut);
  }

  // The table in the schedule that is made, of that chunk if it is cut.
  int copy(int index, int chunk) {
    const Table& table = whole_.tables[static_cast<std::size_t>(index)];
    const auto [place, isNew] = copies_.try_emplace({index, isCut(index) ? chunk : 0}, -1);
    if (!isNew) return place->second;
    Table made = table;
    if (isCut(index)) {
      made.chunk = chunk;
      for (const Cut& cut : cuts_) std::ranges::replace(made.shape, cut.whole, cut.chunk);
    }
    return place->second = made_.table(std::move(made));
  }

  void repeat(std::size_t index, int chunk) {
    Phase phase = whole_.phases[index];
    const bool cut = touches(phase);
    for (int& table : phase.reads) table = copy(table, chunk);
    for (int& table : phase.writes) {
      const bool shared = cut && !isCut(table);
      table = copy(table, chunk);
      // Each chunk adds its own.
      if (shared) made_.at(table).sum = true;
    }
    if (cut && goesBeside(phase)) phase.stream = 1 + chunk;
    made_.add(std::move(phase));
  }

  const Schedule& whole_;
  const Cuts cuts_;
  Builder made_;
  std::map<std::pair<int, int>, int> copies_;
};

// The same with phases between the pass's input and whatever reads it, and before its output, where
// a batch can be cut.
Schedule betweenBatches(const Schedule& schedule) {
  Builder made(schedule);
  made.schedule().tables = schedule.tables;
  const auto pieceOf = [&](int index) {
    Table piece = schedule.tables[static_cast<std::size_t>(index)];
    piece.name = "chunk of " + piece.name;
    piece.role = Role::made;
    return made.table(std::move(piece));
  };
  const int read = pieceOf(schedule.input), written = pieceOf(schedule.output);
  made.at(schedule.output).sum = false;
  const auto between = [&](std::vector<int>& tables) {
    std::ranges::replace(tables, schedule.input, read);
    std::ranges::replace(tables, schedule.output, written);
  };
  made.add({.kind = Kind::split,
            .name = "chunk of the batch",
            .reads = {schedule.input},
            .writes = {read},
            .group = GroupKind::mp});
  for (Phase phase : schedule.phases) {
    between(phase.reads);
    between(phase.writes);
    made.add(std::move(phase));
  }
  made.add({.kind = Kind::join,
            .name = "chunks to their batch",
            .reads = {written},
            .writes = {schedule.output},
            .group = GroupKind::mp});
  made.schedule().input = schedule.input;
  made.output(schedule.output);
  return made.build();
}

// Whether each table has been written before it is read.
bool isInOrder(const Schedule& schedule) {
  std::vector<std::size_t> written(schedule.tables.size(), 0);
  for (std::size_t i = 0; i < schedule.phases.size(); ++i)
    for (const int table : schedule.phases[i].writes) written[static_cast<std::size_t>(table)] = i;
  for (std::size_t i = 0; i < schedule.phases.size(); ++i)
    for (const int table : schedule.phases[i].reads)
      if (written[static_cast<std::size_t>(table)] > i) return false;
  return true;
}

}  // namespace

Schedule chunked(const Schedule& schedule, int chunks) {
  if (chunks == 1) return schedule;
  const auto refuse = [&](const char* why) {
    throw NotOffered("schedule " + schedule.name + " cannot be cut in chunks: " + why);
  };
  if (schedule.chunks != 1) refuse("it is already");
  if (has(schedule, Dim::partTokens)) {
    const Schedule made = Chunks(schedule, kOfParts, chunks).build();
    if (!isInOrder(made)) refuse("a chunk needs what all of them make");
    return made;
  }
  if (!schedule.dropless) refuse("a batch's places are whole where nothing splits it");
  if (has(schedule, Dim::keptRows)) refuse("it exchanges no rows of experts");
  return Chunks(betweenBatches(schedule), kOfBatches, chunks).build();
}

}  // namespace moeccl::schedules

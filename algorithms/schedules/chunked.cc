#include <algorithm>
#include <map>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

// Rows that are bound late are counted anew for each chunk.
bool isCut(const Table& table) {
  return table.element == Element::count64 || std::ranges::any_of(table.shape, [](Dim dim) {
           return dim == Dim::partTokens || dim == Dim::slots || dim == Dim::partRows;
         });
}

class Chunks {
 public:
  Chunks(const Schedule& whole, int chunks) : whole_(whole), made_(whole), chunks_(chunks) {
    made_.schedule().chunks = chunks;
    std::vector<std::size_t> before, after;
    std::vector<std::vector<std::size_t>> stages(1);
    for (std::size_t i = 0; i < whole.phases.size(); ++i) {
      const Phase& phase = whole.phases[i];
      if (!touches(phase)) {
        (stages[0].empty() ? before : after).push_back(i);
        continue;
      }
      stages.back().push_back(i);
      // Ranks tell each other what tokens chose before rows are under way.
      if (goesBeside(phase) || phase.kind == Kind::route) stages.emplace_back();
    }
    for (const std::size_t i : before) repeat(i, 0);
    // All start; in between each stage of a chunk goes beside the next one of the chunk before; and
    // all end.
    const std::size_t last = stages.size() - 1;
    const auto run = [&](std::size_t stage, std::size_t chunk) {
      for (const std::size_t i : stages[stage]) repeat(i, static_cast<int>(chunk));
    };
    const auto count = static_cast<std::size_t>(chunks);
    for (std::size_t chunk = 0; chunk < count; ++chunk) run(0, chunk);
    for (std::size_t turn = 0; last > 1 && turn < count + last - 2; ++turn)
      for (std::size_t stage = 1; stage < last && stage <= turn + 1; ++stage)
        if (turn + 1 - stage < count) run(stage, turn + 1 - stage);
    for (std::size_t chunk = 0; last > 0 && chunk < count; ++chunk) run(last, chunk);
    for (const std::size_t i : after) repeat(i, 0);
    made_.schedule().input = copy(whole.input, 0);
    made_.schedule().output = copy(whole.output, 0);
  }

  Schedule build() { return made_.build(); }

 private:
  static bool goesBeside(const Phase& phase) {
    return phase.routed || phase.kind == Kind::exchange;
  }

  bool touches(const Phase& phase) const {
    const auto cut = [&](int table) {
      return isCut(whole_.tables[static_cast<std::size_t>(table)]);
    };
    return std::ranges::any_of(phase.reads, cut) || std::ranges::any_of(phase.writes, cut);
  }

  // The table in the schedule that is made, of that chunk if it is cut.
  int copy(int index, int chunk) {
    const Table& table = whole_.tables[static_cast<std::size_t>(index)];
    const auto [place, isNew] = copies_.try_emplace({index, isCut(table) ? chunk : 0}, -1);
    if (!isNew) return place->second;
    Table made = table;
    if (isCut(table)) {
      made.chunk = chunk;
      std::ranges::replace(made.shape, Dim::partTokens, Dim::chunkTokens);
      std::ranges::replace(made.shape, Dim::slots, Dim::chunkSlots);
      std::ranges::replace(made.shape, Dim::partRows, Dim::chunkRows);
    }
    return place->second = made_.table(std::move(made));
  }

  void repeat(std::size_t index, int chunk) {
    Phase phase = whole_.phases[index];
    const bool cut = touches(phase);
    for (int& table : phase.reads) table = copy(table, chunk);
    for (int& table : phase.writes) {
      const bool shared = cut && !isCut(whole_.tables[static_cast<std::size_t>(table)]);
      table = copy(table, chunk);
      // Each chunk adds its own.
      if (shared) made_.at(table).sum = true;
    }
    if (cut && goesBeside(phase)) phase.stream = 1 + chunk;
    made_.add(std::move(phase));
  }

  const Schedule& whole_;
  Builder made_;
  const int chunks_;
  std::map<std::pair<int, int>, int> copies_;
};

}  // namespace

Schedule chunked(const Schedule& schedule, int chunks) {
  if (chunks == 1) return schedule;
  const bool splits = std::ranges::any_of(schedule.tables, [](const Table& table) {
    return std::ranges::count(table.shape, Dim::partTokens) > 0;
  });
  if (!splits || schedule.chunks != 1)
    throw NotOffered("schedule " + schedule.name +
                     " cannot be cut in chunks: these are of the parts of a batch");
  return Chunks(schedule, chunks).build();
}

}  // namespace moeccl::schedules

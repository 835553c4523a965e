// Finds out which tables of a pass lie in which: parts in wholes, and what a phase makes in what it
// reads.
#include "src/route/binding.h"

#include <algorithm>
#include <numeric>

namespace moeccl::schedules {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::ranges::count(list, value) > 0;
}

}  // namespace

bool lieAlike(const Shape& one, const Shape& other, const Sizes& sizes) {
  const auto essential = [&](Shape shape) {
    std::erase_if(shape, [&](Dim dim) { return !boundLate(dim) && sizes.at(dim) == 1; });
    return shape;
  };
  return essential(one) == essential(other);
}

Binding::Binding(const Schedule& schedule, const Sizes& sizes, const Groups& groups,
                 std::int64_t elementBytes, const Schedule* backward, const Binding* forward,
                 bool around)
    : schedule_(schedule),
      sizes_(sizes),
      groups_(groups),
      elementBytes_(elementBytes),
      forward_(forward),
      around_(around),
      earlier_(earlier(schedule)),
      kept_(schedule.tables.size()),
      parents_(schedule.tables.size()),
      offsets_(schedule.tables.size()),
      storages_(schedule.tables.size()),
      places_(schedule.tables.size()) {
  std::iota(parents_.begin(), parents_.end(), 0);
  if (forward != nullptr) buffers_ = forward->buffers_;
  if (backward != nullptr)
    for (std::size_t i = 0; i < kept_.size(); ++i)
      kept_[i] = std::ranges::any_of(backward->tables, [&](const Table& it) {
        return it.role == Role::kept && it.name == schedule.tables[i].name &&
               it.chunk == schedule.tables[i].chunk;
      });
  for (int i = 0; i < static_cast<int>(kept_.size()); ++i) apart_.push_back(findApart(i));
  fix();
  for (std::size_t i = 0; i < schedule.phases.size(); ++i) alias(i);
  if (!outputIsFree()) {
    copiesOutput_ = true;
    storageOf(schedule.output) = Storage::buffers;
  }
  makeBuffers();
}

int Binding::ranksOf(GroupKind group) const { return groups_.of(group).ranks; }
int Binding::rankIn(GroupKind group) const { return groups_.of(group).rank; }

bool Binding::late(int index) const {
  return hasRuns(table(index)) || has(table(index), Dim::keptRows);
}

std::int64_t Binding::bytes(int index) const {
  if (late(index)) return 0;
  return sizes_.elements(table(index).shape) *
         (table(index).element == Element::layer ? elementBytes_ : 8);
}

int Binding::root(int index) const {
  while (parents_[static_cast<std::size_t>(index)] != index)
    index = parents_[static_cast<std::size_t>(index)];
  return index;
}

std::int64_t Binding::offset(int index) const {
  std::int64_t sum = 0;
  for (; parents_[static_cast<std::size_t>(index)] != index;
       index = parents_[static_cast<std::size_t>(index)])
    sum += offsets_[static_cast<std::size_t>(index)];
  return sum;
}

int Binding::writers(int index) const {
  return static_cast<int>(std::ranges::count_if(
      schedule_.phases, [&](const Phase& phase) { return contains(phase.writes, index); }));
}

bool Binding::isInput(int index) const {
  const int at = root(index);
  const Storage storage = storages_[static_cast<std::size_t>(at)];
  return storage == Storage::input || storage == Storage::results || table(at).role == Role::kept;
}

// Phases that go expert by expert take turns.
bool Binding::endsBefore(std::size_t phase, std::size_t other) const {
  if (other >= schedule_.phases.size()) return phase < other;
  if (phase >= other) return false;
  if (schedule_.phases[phase].oneByOne && schedule_.phases[other].oneByOne) return false;
  return earlier_[other][phase];
}

void Binding::fix() {
  const bool gathered = std::ranges::any_of(schedule_.tables, [](const Table& it) {
    return it.shape == Shape{Dim::mp, Dim::sums};
  });
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Table& it = schedule_.tables[i];
    if (it.role == Role::weights || (it.role == Role::kept && it.element == Element::count64))
      storages_[i] = Storage::nothing;
    if (has(it, Dim::sums)) {
      storages_[i] = Storage::sums;
      if (gathered && it.shape.front() == Dim::sums)
        places_[i].offset = rankIn(GroupKind::mp) * sizes_.at(Dim::sums) * 8;
    }
    const bool exchanged = std::ranges::any_of(schedule_.phases, [&](const Phase& phase) {
      const int index = static_cast<int>(i);
      return phase.kind == Kind::exchange &&
             (contains(phase.reads, index) || contains(phase.writes, index));
    });
    if (it.role == Role::made && isOfWeights(it) && !exchanged) storages_[i] = Storage::nothing;
  }
  storageOf(schedule_.input) = Storage::input;
  storageOf(schedule_.output) = Storage::output;
  // Routing is the layer's, and the counts of token routing are asked for.
  for (const Phase& phase : schedule_.phases)
    if ((phase.kind == Kind::gate && !phase.backward) || phase.kind == Kind::route)
      storageOf(phase.writes[0]) = Storage::nothing;
  if (around_) fixExperts();
  if (forward_ != nullptr) fixBackward();
}

// What ranks do for gates has another way, too: gradients of weights are the caller's at once.
void Binding::fixExperts() {
  for (int i = 0; i < static_cast<int>(storages_.size()); ++i)
    if (forward_ != nullptr && table(i).role == Role::made && has(table(i), Dim::choices))
      storageOf(i) = Storage::nothing;
  for (const Phase& phase : schedule_.phases) {
    if (phase.kind != Kind::experts) continue;
    storageOf(phase.reads[0]) = Storage::rows;
    storageOf(phase.writes[0]) = Storage::results;
  }
}

// Kept tables lie where the forward pass has them.
void Binding::fixBackward() {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const Table& it = schedule_.tables[i];
    if (it.role != Role::kept) continue;
    for (std::size_t j = 0; j < forward_->places_.size(); ++j) {
      const Table& theirs = forward_->schedule_.tables[j];
      if (theirs.name == it.name && theirs.chunk == it.chunk) places_[i] = forward_->places_[j];
    }
    storages_[i] = places_[i].storage == Storage::buffers   ? Storage::buffers
                   : places_[i].storage == Storage::results ? Storage::again
                                                            : Storage::nothing;
  }
}

bool Binding::readLater(std::size_t phase, int index) const {
  const int place = root(index);
  for (std::size_t other = 0; other < schedule_.phases.size(); ++other) {
    if (other == phase || endsBefore(other, phase)) continue;
    const Phase& it = schedule_.phases[other];
    if (it.oneByOne && schedule_.phases[phase].oneByOne && other < phase) continue;
    if (std::ranges::any_of(it.reads, [&](int read) { return root(read) == place; })) return true;
  }
  return false;
}

void Binding::lie(int child, int parent, std::int64_t offset) {
  const int under = root(child);
  if (this->offset(child) != 0 || under == root(parent) || !isOpen(child) || isInput(child)) return;
  std::int64_t size = 0;
  bool kept = false;
  for (int i = 0; i < static_cast<int>(parents_.size()); ++i)
    if (root(i) == under) {
      size = std::max(size, this->offset(i) + bytes(i));
      kept |= kept_[static_cast<std::size_t>(i)];
    }
  if (size > bytes(child)) return;
  // Kept tables cannot lie in the caller's memory.
  if (kept && !isOpen(parent)) return;
  parents_[static_cast<std::size_t>(under)] = parent;
  offsets_[static_cast<std::size_t>(under)] = offset;
}

void Binding::unite(int written, int read) {
  if (root(written) == root(read)) return;
  if (writers(written) > 1 && isInput(read)) return;
  if (isOpen(written) && !isInput(written) && offset(written) == 0)
    lie(written, read, 0);
  else
    lie(read, written, 0);
}

void Binding::inPlace(std::size_t phase, int written, int read) {
  if (isInput(read) || readLater(phase, read)) return;
  for (int i = 0; i < static_cast<int>(kept_.size()); ++i) {
    if (root(i) != root(read) || !kept_[static_cast<std::size_t>(i)]) continue;
    for (std::size_t before = 0; before < phase; ++before)
      if (contains(schedule_.phases[before].writes, i)) return;
  }
  unite(written, read);
}

void Binding::alias(std::size_t index) {
  const Phase& phase = schedule_.phases[index];
  switch (phase.kind) {
    case Kind::split:
      return aliasSplit(index);
    case Kind::exchange:
      return aliasExchange(index);
    case Kind::join:
      return aliasJoin(phase);
    case Kind::regroup: {
      const int read = phase.reads[0];
      if (storages_[static_cast<std::size_t>(root(read))] != Storage::view &&
          lieAlike(table(read).shape, table(phase.writes[0]).shape, sizes_))
        unite(phase.writes[0], read);
      return;
    }
    case Kind::experts:
      return inPlace(index, phase.writes[0], phase.reads[0]);
    default:
      return;
  }
}

void Binding::aliasSplit(std::size_t index) {
  const Phase& phase = schedule_.phases[index];
  const int from = phase.reads[0], to = phase.writes[0];
  if (storages_[static_cast<std::size_t>(root(from))] == Storage::nothing) {
    storageOf(to) = Storage::nothing;  // routing
    return;
  }
  if (writers(to) > 1) return;
  if (table(from).shape.front() == Dim::tokens) {
    const std::int64_t row = bytes(from) / std::max<std::int64_t>(sizes_.at(Dim::tokens), 1);
    const std::int64_t first = sizes_.firstToken(table(to), rankIn(phase.group));
    // A part that is sent to others has its padding behind it.
    const bool ends = first + sizes_.paddedTokens(table(to)) <= sizes_.at(Dim::tokens);
    if (!kept_[static_cast<std::size_t>(to)] && (ends || !isExchanged(to)))
      lie(to, from, first * row);
    return;
  }
  if (ranksOf(phase.group) == 1) return unite(to, from);
  const bool collected = std::ranges::all_of(schedule_.phases, [&](const Phase& other) {
    return !contains(other.reads, to) || other.kind == Kind::regroup;
  });
  if (!collected || kept_[static_cast<std::size_t>(to)]) return;
  storageOf(to) = Storage::view;
  places_[static_cast<std::size_t>(to)].of = from;
}

void Binding::aliasExchange(std::size_t index) {
  const Phase& phase = schedule_.phases[index];
  if (ranksOf(phase.group) == 1) {
    for (std::size_t i = 0; i < phase.writes.size(); ++i) {
      const int read = phase.reads[i], written = phase.writes[i];
      if (writers(written) == 1 || !readLater(index, read)) unite(written, read);
    }
    return;
  }
  const int read = phase.reads[0], written = phase.writes[0];
  if (phase.collective == Collective::allGather && !late(read)) {
    if (isOpen(read) && !isInput(read) && !kept_[static_cast<std::size_t>(read)])
      lie(read, written, rankIn(phase.group) * bytes(read));
    return;
  }
  if (phase.collective != Collective::allReduce) return;
  // One all-reduce of several tables: they lie behind each other, but for those that are nowhere.
  const bool several = phase.writes.size() > 1;
  int first = -1;
  std::int64_t behind = 0;
  for (std::size_t i = 0; i < phase.writes.size() && several; ++i) {
    const int each = phase.reads[i];
    if (storages_[static_cast<std::size_t>(root(each))] == Storage::nothing) continue;
    if (first < 0)
      first = each;
    else
      lie(each, first, behind);
    behind += bytes(each);
  }
  for (std::size_t i = 0; i < phase.writes.size(); ++i)
    if (!several || isOpen(phase.writes[i])) inPlace(index, phase.writes[i], phase.reads[i]);
}

// Whether the table is sent to other ranks.
bool Binding::isExchanged(int index) const {
  return std::ranges::any_of(schedule_.phases, [&](const Phase& phase) {
    return phase.kind == Kind::exchange && ranksOf(phase.group) > 1 && contains(phase.reads, index);
  });
}

bool Binding::findApart(int batch) const {
  std::vector<int> chunks;
  for (const Phase& phase : schedule_.phases) {
    if (!contains(phase.writes, batch)) continue;
    const Table& parts = table(phase.reads[0]);
    const Dim front = parts.shape.front();
    if (phase.kind != Kind::join || (front != Dim::mp && front != Dim::batchChunkTokens))
      return false;
    if (contains(chunks, parts.chunk)) return false;
    chunks.push_back(parts.chunk);
  }
  return true;
}

// Parts that need no padding are gathered in their batch itself, and chunks of it are made there.
void Binding::aliasJoin(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  if (!joinsAreApart(to)) return;
  const bool fits = schedule_.chunks == 1 &&
                    sizes_.at(Dim::partTokens) * sizes_.at(Dim::mp) == sizes_.at(Dim::tokens);
  const bool gathered = table(from).shape.front() == Dim::mp && ranksOf(GroupKind::mp) > 1;
  if (gathered && !fits) return;
  const std::int64_t row = bytes(to) / std::max<std::int64_t>(sizes_.at(Dim::tokens), 1);
  lie(from, to, sizes_.firstToken(table(from), 0) * row);
}

// The caller's input and output may be the same.
bool Binding::outputIsFree() const {
  const auto touches = [&](const std::vector<int>& list, Storage storage) {
    return std::ranges::any_of(
        list, [&](int it) { return storages_[static_cast<std::size_t>(root(it))] == storage; });
  };
  for (std::size_t write = 0; write < schedule_.phases.size(); ++write) {
    if (!touches(schedule_.phases[write].writes, Storage::output)) continue;
    for (std::size_t read = 0; read < schedule_.phases.size(); ++read)
      if (touches(schedule_.phases[read].reads, Storage::input) && !endsBefore(read, write))
        return false;
  }
  return true;
}

}  // namespace moeccl::schedules

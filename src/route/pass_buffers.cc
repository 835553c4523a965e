// The buffers of a pass: tables that are never in use at once take turns in one.
#include <algorithm>
#include <functional>

#include "src/route/binding.h"

namespace moeccl::schedules {

// Tables that share memory, and when it is used.
struct Binding::Set {
  int root = -1;
  std::int64_t bytes = 0;
  bool late = false, kept = false, own = false;
  std::vector<std::size_t> phases;  // that touch it; the number of phases: the end of the pass
};

std::vector<Binding::Set> Binding::sets() const {
  std::vector<Set> sets(storages_.size());
  for (int i = 0; i < static_cast<int>(sets.size()); ++i) {
    Set& set = sets[static_cast<std::size_t>(root(i))];
    if (!isOpen(i) || table(root(i)).role == Role::kept) continue;
    set.root = root(i);
    set.bytes = std::max(set.bytes, offset(i) + bytes(i));
    set.late |= late(i);
    set.kept |= kept_[static_cast<std::size_t>(i)];
    for (std::size_t at = 0; at < schedule_.phases.size(); ++at) {
      const Phase& phase = schedule_.phases[at];
      const auto touched = [&](int it) {
        return it == i || places_[static_cast<std::size_t>(it)].of == i;
      };
      if (std::ranges::any_of(phase.reads, touched) || std::ranges::any_of(phase.writes, touched))
        set.phases.push_back(at);
    }
    // Behind the pass the output is copied, and gradients of weights are added to the caller's.
    if (i == schedule_.output || isOfWeights(table(i)))
      set.phases.push_back(schedule_.phases.size());
  }
  std::erase_if(sets, [](const Set& set) { return set.root < 0; });
  for (Set& set : sets) {
    std::ranges::sort(set.phases);
    set.own = set.kept;
    for (std::size_t at = 0; at < schedule_.phases.size() && !set.phases.empty(); ++at)
      set.own |= schedule_.phases[at].kind == Kind::experts && set.phases.front() <= at &&
                 at <= set.phases.back();
  }
  return sets;
}

void Binding::makeBuffers() {
  std::vector<Set> sets = this->sets();
  std::ranges::stable_sort(sets, std::greater<>(), &Set::bytes);
  std::vector<std::vector<const Set*>> users(buffers_.size());
  const auto apart = [&](const Set& one, const Set& other) {
    const auto before = [&](const Set& first, const Set& then) {
      return std::ranges::all_of(first.phases, [&](std::size_t a) {
        return std::ranges::all_of(then.phases, [&](std::size_t b) { return endsBefore(a, b); });
      });
    };
    return before(one, other) || before(other, one);
  };
  for (const Set& set : sets) {
    std::size_t choice = buffers_.size();
    for (std::size_t i = 0; i < buffers_.size() && choice == buffers_.size(); ++i) {
      const PassBuffer& it = buffers_[i];
      if (set.kept || it.kept || it.late != set.late || it.own != set.own) continue;
      if (std::ranges::all_of(users[i], [&](const Set* other) { return apart(set, *other); }))
        choice = i;
    }
    if (choice == buffers_.size()) {
      buffers_.push_back({0, set.late, set.own, set.kept});
      users.emplace_back();
    }
    buffers_[choice].bytes = std::max(buffers_[choice].bytes, set.bytes);
    users[choice].push_back(&set);
    places_[static_cast<std::size_t>(set.root)].buffer = static_cast<int>(choice);
  }
  for (int i = 0; i < static_cast<int>(places_.size()); ++i) {
    Place& place = places_[static_cast<std::size_t>(i)];
    const int under = root(i);
    place.storage = storages_[static_cast<std::size_t>(under)];
    if (under == i) continue;
    place.buffer = places_[static_cast<std::size_t>(under)].buffer;
    place.offset = places_[static_cast<std::size_t>(under)].offset + offset(i);
  }
}

}  // namespace moeccl::schedules

// Changes one phase, table or shape at a time.
#include "tests/schedules/mutations.h"

#include <algorithm>
#include <utility>

namespace moeccl::schedules {
namespace {

class Mutations {
 public:
  Mutations(const Schedule& schedule, const std::function<void(const Mutant&)>& seen)
      : schedule_(schedule), seen_(seen) {}

  void all() {
    for (phase_ = 0; phase_ < static_cast<int>(schedule_.phases.size()); ++phase_) {
      dropPhase();
      repeatPhase();
      swapWithNext();
      for (std::vector<int> Phase::*list : {&Phase::reads, &Phase::writes}) changeTables(list);
      changeExchange();
      changeFlags();
      changeOrder();
    }
    phase_ = -1;
    for (table_ = 0; table_ < static_cast<int>(schedule_.tables.size()); ++table_) changeTable();
    table_ = -1;
    for (int other = 0; other < static_cast<int>(schedule_.tables.size()); ++other) {
      if (other != schedule_.output)
        mutate("another output", [&](Schedule& mutant) { mutant.output = other; });
      if (other != schedule_.input)
        mutate("another input", [&](Schedule& mutant) { mutant.input = other; });
    }
  }

 private:
  const Phase& phase() const { return schedule_.phases[static_cast<std::size_t>(phase_)]; }

  template <typename Edit>
  void mutate(std::string_view kind, const Edit& edit) {
    Schedule mutant = schedule_;
    edit(mutant);
    seen_({kind, phase_, table_, std::move(mutant)});
  }
  template <typename Edit>
  void mutatePhase(std::string_view kind, const Edit& edit) {
    mutate(kind, [&](Schedule& mutant) { edit(mutant.phases[static_cast<std::size_t>(phase_)]); });
  }
  template <typename Edit>
  void mutateTable(std::string_view kind, const Edit& edit) {
    mutate(kind, [&](Schedule& mutant) { edit(mutant.tables[static_cast<std::size_t>(table_)]); });
  }

  void dropPhase() {
    mutate("drop phase", [&](Schedule& mutant) {
      mutant.phases.erase(mutant.phases.begin() + phase_);
      for (Phase& other : mutant.phases) {
        std::erase(other.after, phase_);
        for (int& after : other.after) after -= after > phase_;
      }
    });
  }

  void repeatPhase() {
    mutate("repeat phase", [&](Schedule& mutant) {
      Phase copy = phase();
      for (Phase& other : mutant.phases)
        for (int& after : other.after) after += after > phase_;
      mutant.phases.insert(mutant.phases.begin() + phase_ + 1, std::move(copy));
    });
  }

  void swapWithNext() {
    if (phase_ + 1 == static_cast<int>(schedule_.phases.size())) return;
    mutate("swap phases", [&](Schedule& mutant) {
      std::swap(mutant.phases[static_cast<std::size_t>(phase_)],
                mutant.phases[static_cast<std::size_t>(phase_) + 1]);
      for (Phase& other : mutant.phases)
        for (int& after : other.after)
          after = after == phase_ ? phase_ + 1 : after == phase_ + 1 ? phase_ : after;
    });
  }

  void changeTables(std::vector<int> Phase::*list) {
    const bool reads = list == &Phase::reads;
    for (std::size_t i = 0; i < (phase().*list).size(); ++i) {
      for (int other = 0; other < static_cast<int>(schedule_.tables.size()); ++other)
        if (other != (phase().*list)[i])
          mutatePhase(reads ? "read another table" : "write another table",
                      [&](Phase& mutant) { (mutant.*list)[i] = other; });
      mutatePhase(reads ? "drop read" : "drop write", [&](Phase& mutant) {
        (mutant.*list).erase((mutant.*list).begin() + static_cast<std::ptrdiff_t>(i));
      });
      for (std::size_t j = i + 1; j < (phase().*list).size(); ++j)
        mutatePhase("swap tables",
                    [&](Phase& mutant) { std::swap((mutant.*list)[i], (mutant.*list)[j]); });
    }
  }

  void changeExchange() {
    if (phase().kind == Kind::exchange)
      for (int other = 0; other < kCollectives; ++other)
        if (const auto collective = static_cast<Collective>(other);
            collective != phase().collective)
          mutatePhase("another collective", [&](Phase& mutant) { mutant.collective = collective; });
    if (phase().kind == Kind::exchange || phase().kind == Kind::split || phase().kind == Kind::join)
      for (int other = 0; other < kGroupKinds; ++other)
        if (const auto group = static_cast<GroupKind>(other); group != phase().group)
          mutatePhase("another group", [&](Phase& mutant) { mutant.group = group; });
  }

  void changeFlags() {
    mutatePhase("the other pass", [&](Phase& mutant) { mutant.backward = !mutant.backward; });
    mutatePhase("the other way", [&](Phase& mutant) { mutant.routed = !mutant.routed; });
    if (phase().kind == Kind::experts)
      mutatePhase("count copies", [&](Phase& mutant) { mutant.copies = !mutant.copies; });
    for (int other = 0; other <= static_cast<int>(Kind::add); ++other)
      if (const auto kind = static_cast<Kind>(other); kind != phase().kind)
        mutatePhase("another kind", [&](Phase& mutant) { mutant.kind = kind; });
  }

  void changeOrder() {
    for (const int after : phase().after)
      mutatePhase("drop dependency", [&](Phase& mutant) { std::erase(mutant.after, after); });
    for (int stream = 0; stream <= schedule_.streams; ++stream)
      if (stream != phase().stream)
        mutate("another stream", [&](Schedule& mutant) {
          mutant.phases[static_cast<std::size_t>(phase_)].stream = stream;
          mutant.streams = std::max(mutant.streams, stream + 1);
        });
  }

  void changeTable() {
    const Table& table = schedule_.tables[static_cast<std::size_t>(table_)];
    for (std::size_t i = 0; i < table.shape.size(); ++i) {
      for (int other = 0; other < kDims; ++other)
        if (const auto dim = static_cast<Dim>(other); dim != table.shape[i])
          mutateTable("another dimension", [&](Table& mutant) { mutant.shape[i] = dim; });
      mutateTable("drop dimension", [&](Table& mutant) {
        mutant.shape.erase(mutant.shape.begin() + static_cast<std::ptrdiff_t>(i));
      });
      for (std::size_t j = i + 1; j < table.shape.size(); ++j)
        mutateTable("swap dimensions",
                    [&](Table& mutant) { std::swap(mutant.shape[i], mutant.shape[j]); });
    }
    for (int other = 0; other < 4; ++other)
      if (const auto role = static_cast<Role>(other); role != table.role)
        mutateTable("another role", [&](Table& mutant) { mutant.role = role; });
    for (int other = 0; other < 3; ++other)
      if (const auto element = static_cast<Element>(other); element != table.element)
        mutateTable("another element", [&](Table& mutant) { mutant.element = element; });
    for (const auto group : {GroupKind::mp, GroupKind::ep, GroupKind::esp})
      if (table.held.of(group) != State::replicated)
        mutateTable("say replicated",
                    [&](Table& mutant) { mutant.held.of(group) = State::replicated; });
    mutateTable("flip sum", [&](Table& mutant) { mutant.sum = !mutant.sum; });
    mutateTable("another chunk", [&](Table& mutant) { ++mutant.chunk; });
    if (table.role == Role::kept)
      mutateTable("another name", [&](Table& mutant) { mutant.name += "?"; });
  }

  const Schedule& schedule_;
  const std::function<void(const Mutant&)>& seen_;
  int phase_ = -1, table_ = -1;
};

}  // namespace

void forEachMutant(const Schedule& schedule, const std::function<void(const Mutant&)>& seen) {
  Mutations(schedule, seen).all();
}

}  // namespace moeccl::schedules

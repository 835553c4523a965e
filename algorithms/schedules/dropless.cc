// Makes a pass that drops no token of one with capacities.
#include <algorithm>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

class Dropless {
 public:
  explicit Dropless(const Schedule& schedule)
      : from_(schedule), made_(schedule), tables_(schedule.tables.size(), -1) {
    made_.schedule().dropless = true;
    made_.schedule().needs.wholeGroups = false;
    for (const Table& table : schedule.tables) ofGroup_ |= has(table.shape, Dim::capacity);
    for (const Phase& phase : schedule.phases) rewrite(phase);
    made_.schedule().input = tables_[static_cast<std::size_t>(schedule.input)];
    made_.schedule().output = tables_[static_cast<std::size_t>(schedule.output)];
  }

  Schedule build() { return made_.build(); }

 private:
  static bool places(const Shape& shape) {
    return has(shape, Dim::capacity) || has(shape, Dim::slots);
  }
  Dim rows() const { return ofGroup_ ? Dim::batchRows : Dim::partRows; }

  // Runs of rows instead of places: those of one expert lie together only where experts are
  // computed.
  Shape runs(const Shape& shape) const {
    if (!places(shape)) return shape;
    const bool shards = has(shape, Dim::esp) || has(shape, Dim::ranks);
    Shape made;
    if (shape.front() == Dim::localExperts) {
      made = {Dim::localExperts, Dim::esp, Dim::ep};
      if (!shards) made = {Dim::localExperts, Dim::ep};
    } else if (shape.front() == Dim::esp) {
      made = {Dim::esp, Dim::ep, Dim::localExperts};
    } else {
      made = {Dim::ep, Dim::esp, Dim::localExperts};
      if (!shards) made = {Dim::ep, Dim::localExperts};
    }
    made.push_back(rows());
    made.push_back(Dim::embedding);
    return made;
  }

  int& of(int index) {
    int& made = tables_[static_cast<std::size_t>(index)];
    if (made < 0) {
      Table table = from_.tables[static_cast<std::size_t>(index)];
      table.shape = runs(table.shape);
      made = made_.table(std::move(table));
    }
    return made;
  }

  Table countsOf(Shape shape, std::string name) const {
    return {.name = std::move(name), .shape = std::move(shape), .element = Element::count64};
  }

  int counts() {
    if (counts_ < 0) {
      Shape shape = {Dim::esp, Dim::ep, Dim::localExperts};
      if (ofGroup_) shape = {Dim::ep, Dim::esp, Dim::localExperts};
      counts_ = made_.kept(countsOf(std::move(shape), "counts"));
    }
    return counts_;
  }

  void gate(const Phase& phase) {
    Phase gate = phase;
    if (phase.backward) return add(phase);
    for (int& table : gate.reads) table = of(table);
    for (int& table : gate.writes) table = of(table);
    Shape shape = {Dim::ep, Dim::localExperts};
    if (ofGroup_) shape = {Dim::ep, Dim::esp, Dim::localExperts};
    const int own = made_.make(std::move(gate), countsOf(std::move(shape), "own counts"));
    counts_ = made_.exchange(Collective::allToAll, GroupKind::ep, own,
                             ofGroup_ ? "counts" : "arrived counts", "EP-AlltoAll of the counts");
    if (ofGroup_) return;
    counts_ = made_.exchange(Collective::allGather, GroupKind::esp, counts_, "counts",
                             "ESP-AllGather of the counts");
  }

  // The phase made last reads counts.
  void bind() { made_.last().reads.push_back(counts()); }

  void add(Phase phase) {
    for (int& table : phase.reads) table = of(table);
    for (int& table : phase.writes) table = of(table);
    const auto late = [&](int table) { return hasRuns(made_.at(table)); };
    const bool binds =
        std::ranges::any_of(phase.reads, late) || std::ranges::any_of(phase.writes, late);
    made_.add(std::move(phase));
    if (binds) bind();
  }

  int exchange(Collective collective, GroupKind group, int table, const std::string& made,
               const char* name) {
    const int result = made_.exchange(collective, group, table, made, name);
    bind();
    return result;
  }
  int regroup(int table, Shape shape, const std::string& made) {
    const int result = made_.regroup(table, std::move(shape), made);
    bind();
    return result;
  }

  void rewrite(const Phase& phase) {
    const int read = phase.reads[0];
    const Table& written = from_.tables[static_cast<std::size_t>(phase.writes[0])];
    if (phase.kind == Kind::gate && !keptRowsAlone()) return gate(phase);
    if (phase.kind == Kind::experts) behindExperts_ = true;
    if (!places(written.shape)) return add(phase);
    if (phase.kind == Kind::regroup &&
        (runs(written.shape) == made_.at(of(read)).shape || folds(phase))) {
      of(phase.writes[0]) = of(read);  // the order in between is not needed
      return;
    }
    if (phase.kind != Kind::exchange || phase.collective == Collective::allReduce)
      return add(phase);
    int& target = tables_[static_cast<std::size_t>(phase.writes[0])];
    const std::string& name = written.name;
    const char* const toOrFrom =
        behindExperts_ ? "EP-AlltoAllv from the experts" : "EP-AlltoAllv to the experts";
    switch (phase.collective) {
      case Collective::allToAll:
        target = exchange(Collective::allToAll, GroupKind::ep, of(read), name, toOrFrom);
        return;
      case Collective::allGather:
        target = exchange(Collective::allGather, GroupKind::esp, of(read), name,
                          "ESP-AllGather of the rows");
        return;
      case Collective::reduceScatter:
        target = exchange(Collective::reduceScatter, GroupKind::esp, of(read), name,
                          "ESP-ReduceScatter of the rows");
        return;
      case Collective::dispatch: {
        const int arrived = exchange(Collective::allToAll, GroupKind::ep, of(read),
                                     name + " as it arrived", toOrFrom);
        const int all = exchange(Collective::allGather, GroupKind::esp, arrived, name + " by rank",
                                 "ESP-AllGather of the rows");
        target = regroup(all, runs(written.shape), name);
        return;
      }
      case Collective::combine: {
        const int byRank =
            regroup(of(read), {Dim::esp, Dim::ep, Dim::localExperts, rows(), Dim::embedding},
                    made_.at(of(read)).name + " by rank");
        const int sum = exchange(Collective::reduceScatter, GroupKind::esp, byRank,
                                 name + " before it returned", "ESP-ReduceScatter of the rows");
        target = exchange(Collective::allToAll, GroupKind::ep, sum, name, toOrFrom);
        return;
      }
      default:
        throw NotOffered(from_.name + " splits the capacity, of which a dropless layer has none");
    }
  }

  // Whether another order follows at once.
  bool folds(const Phase& phase) const {
    return std::ranges::any_of(from_.phases, [&](const Phase& other) {
      return other.kind == Kind::regroup && other.reads[0] == phase.writes[0];
    });
  }

  // Whether no rows leave the rank, so that none has to be announced.
  bool keptRowsAlone() const {
    return std::ranges::any_of(from_.tables,
                               [](const Table& table) { return has(table.shape, Dim::keptRows); });
  }

  const Schedule& from_;
  Builder made_;
  std::vector<int> tables_;  // by `from`'s
  bool ofGroup_ = false;     // each rank has the rows of all batches of its ESP group
  bool behindExperts_ = false;
  int counts_ = -1;
};

}  // namespace

Schedule dropless(const Schedule& schedule) { return Dropless(schedule).build(); }

}  // namespace moeccl::schedules

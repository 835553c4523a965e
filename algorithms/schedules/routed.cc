// Makes a pass of token routing of one with places for tokens.
#include <algorithm>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

class Routed {
 public:
  explicit Routed(const Schedule& forward)
      : from_(forward), made_(forward), tables_(forward.tables.size(), -1) {
    made_.schedule().dropless = true;
    made_.schedule().needs.wholeGroups = false;
    for (const Phase& phase : forward.phases) rewrite(phase);
    made_.schedule().input = of(forward.input);
    made_.schedule().output = of(forward.output);
  }

  Schedule build() { return made_.build(); }

 private:
  const Table& table(int index) const { return from_.tables[static_cast<std::size_t>(index)]; }
  int& of(int index) {
    int& made = tables_[static_cast<std::size_t>(index)];
    if (made < 0) made = made_.table(table(index));
    return made;
  }
  // Leaves a phase out: what it made is what it was given.
  void skip(const Phase& phase) { of(phase.writes[0]) = of(phase.reads[0]); }
  void copy(Phase phase) {
    for (int& it : phase.reads) it = of(it);
    for (int& it : phase.writes) it = of(it);
    made_.add(std::move(phase));
  }

  bool isRows(int index) const {
    const Shape& shape = table(index).shape;
    return has(shape, Dim::capacity) || has(shape, Dim::slots);
  }
  // Ranks of an ESP group have each other's batches before the gate, and their own one of the
  // results behind the experts.
  static bool isOfBatches(const Phase& phase) {
    return phase.group == GroupKind::esp &&
           (phase.kind == Kind::split ||
            (phase.kind == Kind::exchange && phase.collective == Collective::allGather));
  }

  void rewrite(const Phase& phase) {
    const int written = phase.writes[0];
    if (has(table(written).shape, Dim::keptRows))
      throw NotOffered(from_.name + " exchanges no rows of experts, which could be routed");
    if (isRows(written) && has(table(written).shape, Dim::mp))
      throw NotOffered(from_.name + " splits the capacity, of which a dropless layer has none");
    if (phase.kind == Kind::experts) return experts(phase);
    if (phase.kind == Kind::combine) {
      of(written) = made_.combineRouted(rows_, of(phase.reads[1]), counts_, table(written).name);
      return;
    }
    if (phase.kind == Kind::permute) {
      tokens_ = of(phase.reads[0]);
      routing_ = of(phase.reads[1]);
      return;
    }
    if (isRows(written)) return;
    if (isOfBatches(phase)) return skip(phase);
    copy(phase);
    if (phase.kind != Kind::gate) return;
    // Its tokens are a rank's own, and so is the rest of what it makes.
    made_.at(of(written)).shape = made_.at(of(phase.reads[0])).shape;
    made_.at(of(written)).shape.back() = Dim::choices;
    made_.at(of(written)).held = made_.at(of(phase.reads[0])).held;
    counts_ = made_.route(of(written));
  }

  void experts(const Phase& phase) {
    const bool ofBatch = made_.at(tokens_).shape.front() == Dim::tokens;
    rows_ =
        made_.dispatchRouted(tokens_, routing_, counts_, ofBatch ? Dim::batchRows : Dim::partRows,
                             table(phase.reads[0]).name);
    rows_ = made_.experts(rows_, table(phase.writes[0]).name);
    made_.last().reads.push_back(counts_);
    made_.last().copies = phase.copies;
  }

  const Schedule& from_;
  Builder made_;
  std::vector<int> tables_;  // by `from`'s
  int tokens_ = -1, routing_ = -1, counts_ = -1;
  int rows_ = -1;  // the experts'
};

}  // namespace

Schedule routed(const Schedule& forward) { return Routed(forward).build(); }

}  // namespace moeccl::schedules

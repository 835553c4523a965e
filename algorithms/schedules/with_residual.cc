// Adds the residual branch: an expert that every token passes beside the chosen ones.
#include <algorithm>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

constexpr const char* kGather = "MP-AllGather of the residual branch";
constexpr const char* kReduce = "MP-AllReduce of the residual branch's gradient";

class Residual {
 public:
  explicit Residual(const Schedule& schedule) : from_(schedule), made_(schedule) {
    made_.schedule().tables = schedule.tables;
    made_.schedule().input = schedule.input;
    made_.schedule().output = schedule.output;
    findTargets();
    const std::size_t place = atParts_ ? behindDispatch() : 0;
    for (std::size_t i = 0; i < schedule.phases.size(); ++i) {
      if (i == place) branch();
      addTo(i);
      made_.add(schedule.phases[i]);
      if (atParts_ && goesAside_[i])
        made_.last().stream = 1 + made_.at(made_.last().reads[0]).chunk;
    }
    if (gathered_ >= 0) join(gathered_, schedule.output);
  }

  Schedule build() { return made_.build(); }

 private:
  const Phase* makerOf(int table) const {
    for (const Phase& phase : from_.phases)
      if (std::ranges::count(phase.writes, table) > 0) return &phase;
    return nullptr;
  }
  static bool sumsOver(const Phase* phase, Collective collective) {
    return phase != nullptr && phase->kind == Kind::exchange && phase->group == GroupKind::mp &&
           phase->collective == collective;
  }

  // Finds the exchanges over the MP group that make the output: before them the branch is added.
  void findTargets() {
    for (std::size_t i = 0; i < from_.phases.size(); ++i) {
      const Phase& phase = from_.phases[i];
      if (std::ranges::count(phase.writes, from_.output) == 0) continue;
      if (sumsOver(&phase, Collective::allReduce)) {
        targets_.push_back({i, phase.reads[0]});
        return;
      }
      if (phase.kind != Kind::join) continue;
      const Phase* const gather = makerOf(phase.reads[0]);
      if (!sumsOver(gather, Collective::allGather)) continue;
      targets_.push_back(
          {static_cast<std::size_t>(gather - from_.phases.data()), gather->reads[0]});
      atParts_ = true;
    }
  }

  // The place behind the last exchange before experts; marks those that go on beside the branch.
  std::size_t behindDispatch() {
    goesAside_.resize(from_.phases.size());
    std::size_t begin = 0, end = 0;
    for (std::size_t i = 0; i < from_.phases.size(); ++i) {
      const Phase& phase = from_.phases[i];
      if (phase.kind == Kind::experts) break;
      if (phase.kind == Kind::permute || phase.kind == Kind::combine)
        begin = begin == 0 ? i : begin;
      if (!(phase.kind == Kind::exchange || phase.routed) || begin == 0) continue;
      goesAside_[i] = true;
      end = i + 1;
    }
    return end;
  }

  // The branch's part of the batch, backward of the gradient; in the memory of a table of parts.
  void branch() {
    const bool backward = from_.pass == Pass::backward;
    const int weights = made_.weights("residual branch", {Dim::residualWeights});
    const int part = made_.split(GroupKind::mp, from_.input,
                                 backward ? "gradient of the branch's output" : "branch's input");
    Table result = made_.at(part);
    result.name = backward ? "gradient of the branch's input" : "branch's output";
    Phase phase{.kind = Kind::residual, .name = "residual branch", .reads = {part, weights}};
    if (backward) {
      Table input = made_.at(part);
      input.name = "branch's input";
      phase.reads.insert(phase.reads.begin() + 1, made_.kept(input));
      phase.backward = true;
    }
    result_ = made_.make(std::move(phase), std::move(result));
    if (targets_.empty()) {
      gathered_ = made_.exchange(Collective::allGather, GroupKind::mp, result_,
                                 "all of the " + made_.at(result_).name, kGather);
      made_.last().stream = sideOfBranch();
    }
    if (!backward) return;
    Table gradient{.name = "partial gradient of residual branch",
                   .shape = {Dim::residualWeights},
                   .held = {.mp = State::partial}};
    const int partial = made_.table(std::move(gradient));
    for (Phase& made : made_.schedule().phases)
      if (made.kind == Kind::residual) made.writes.push_back(partial);
    made_.exchange(Collective::allReduce, GroupKind::mp, partial, "gradient of residual branch",
                   kReduce);
    made_.last().stream = sideOfBranch();
  }

  // Behind all streams that the schedule has.
  int sideOfBranch() const { return atParts_ && from_.chunks == 1 ? 2 : from_.streams; }

  // Adds the branch's part before phase `next`, if that gathers or adds up what it belongs to.
  void addTo(std::size_t next) {
    for (const auto& [phase, table] : targets_) {
      if (phase != next) continue;
      made_.at(table).sum = true;
      if (!atParts_) return join(result_, table);
      made_.add({.kind = Kind::add,
                 .name = "residual branch, added",
                 .reads = {result_},
                 .writes = {table}});
    }
  }

  void join(int part, int batch) {
    made_.at(batch).sum = true;
    made_.add({.kind = Kind::join,
               .name = "residual branch, added",
               .reads = {part},
               .writes = {batch},
               .group = GroupKind::mp});
  }

  const Schedule& from_;
  Builder made_;
  // Exchanges that make the output, and what of it they are given.
  std::vector<std::pair<std::size_t, int>> targets_;
  bool atParts_ = false;  // these are all-gathers of parts
  std::vector<bool> goesAside_;
  int result_ = -1, gathered_ = -1;
};

}  // namespace

Schedule withResidual(const Schedule& schedule) { return Residual(schedule).build(); }

}  // namespace moeccl::schedules

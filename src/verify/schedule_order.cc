// Checks one pass of a schedule whatever the sizes: all that phases name exists, tables have one
// writer unless they are sums, and every reader waits for what it reads.
#include <algorithm>

#include "src/verify/verify_schedule.h"

namespace moeccl {
namespace {

using namespace schedules;

constexpr std::size_t kMost = 16;

class ScheduleOrderCheck {
 public:
  explicit ScheduleOrderCheck(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<std::string> run() {
    for (std::size_t i = 0; i < schedule_.phases.size(); ++i) names(i);
    if (!wrong_.empty()) return std::move(wrong_);
    for (std::size_t i = 0; i < schedule_.phases.size(); ++i)
      if (!shapesFit(schedule_, schedule_.phases[i]))
        report(nameOf(i) + " has too many or too few tables, or of shapes that do not fit");
    earlier_ = earlier(schedule_);
    for (std::size_t i = 0; i < schedule_.tables.size(); ++i) table(static_cast<int>(i));
    ends();
    return std::move(wrong_);
  }

 private:
  void report(const std::string& what) {
    if (wrong_.size() < kMost) wrong_.push_back(what);
  }
  std::string nameOf(std::size_t phase) const {
    return "phase " + std::to_string(phase) + " (" + describe(schedule_, static_cast<int>(phase)) +
           ")";
  }
  bool exists(int table) const {
    return table >= 0 && static_cast<std::size_t>(table) < schedule_.tables.size();
  }
  bool before(std::size_t one, std::size_t other) const { return earlier_[other][one]; }

  // Checks that the tables, phases and stream that the phase names exist, and that its kind may
  // have that stream.
  void names(std::size_t index) {
    const Phase& phase = schedule_.phases[index];
    const std::string number = "phase " + std::to_string(index) + " (" + phase.name + ")";
    for (const std::vector<int>* tables : {&phase.reads, &phase.writes})
      for (const int it : *tables)
        if (!exists(it))
          report(number + " names table " + std::to_string(it) + ", which there is not");
    for (const int other : phase.after)
      if (other < 0 || static_cast<std::size_t>(other) >= index)
        report(number + " waits for phase " + std::to_string(other) + ", which is not before it");
    if (phase.stream < 0 || phase.stream >= schedule_.streams)
      report(number + " is on stream " + std::to_string(phase.stream) + " of " +
             std::to_string(schedule_.streams));
    if (phase.kind != Kind::exchange && !phase.routed && phase.stream != 0)
      report(number + " computes beside the pass's stream");
    if (phase.routed && phase.kind != Kind::permute && phase.kind != Kind::combine)
      report(number + " is routed, but neither brings rows to experts nor back");
    if (phase.reads.empty() || phase.writes.empty()) report(number + " reads or writes no table");
    for (std::size_t i = 0; i < phase.writes.size(); ++i)
      if (std::ranges::count(phase.writes, phase.writes[i]) > 1 ||
          std::ranges::count(phase.reads, phase.writes[i]) > 0)
        report(number + " writes table " + std::to_string(phase.writes[i]) +
               " twice, or reads it too");
  }

  void table(int index) {
    const Table& table = schedule_.tables[static_cast<std::size_t>(index)];
    std::vector<std::size_t> writers, readers;
    for (std::size_t i = 0; i < schedule_.phases.size(); ++i) {
      if (std::ranges::count(schedule_.phases[i].writes, index) > 0) writers.push_back(i);
      if (std::ranges::count(schedule_.phases[i].reads, index) > 0) readers.push_back(i);
    }
    if ((table.role == Role::given) != (index == schedule_.input))
      report(table.name + (index == schedule_.input ? " is the input, but not given"
                                                    : " is given, but not the input"));
    if (table.role == Role::weights && table.shape != Shape{Dim::gateWeights} &&
        table.shape != Shape{Dim::residualWeights})
      report(table.name + " is no matrix of weights");
    const bool comes = table.role != Role::made;
    if (comes && !writers.empty())
      report(nameOf(writers[0]) + " writes " + table.name + ", which it is given");
    if (!comes && writers.empty() && !readers.empty())
      report(nameOf(readers[0]) + " reads " + table.name + ", which nobody writes");
    for (std::size_t i = 1; i < writers.size(); ++i) {
      if (!table.sum) report(nameOf(writers[i]) + " writes " + table.name + " again");
      if (!before(writers[i - 1], writers[i]))
        report(nameOf(writers[i]) + " does not wait for " + nameOf(writers[i - 1]) +
               ", which adds to the same sum");
    }
    for (const std::size_t reader : readers)
      for (const std::size_t writer : writers)
        if (!before(writer, reader))
          report(nameOf(reader) + " does not wait for " + nameOf(writer) + ", which writes " +
                 table.name);
  }

  void ends() {
    const Shape batch = {Dim::tokens, Dim::embedding};
    for (const int end : {schedule_.input, schedule_.output})
      if (!exists(end) || schedule_.tables[static_cast<std::size_t>(end)].shape != batch)
        return report("the pass has no input, or no output, of a batch's tokens");
    for (std::size_t writer = 0; writer < schedule_.phases.size(); ++writer) {
      if (std::ranges::count(schedule_.phases[writer].writes, schedule_.output) == 0) continue;
      for (std::size_t reader = 0; reader < schedule_.phases.size(); ++reader)
        if (std::ranges::count(schedule_.phases[reader].reads, schedule_.input) > 0 &&
            reader != writer && !before(reader, writer))
          report(nameOf(writer) + " writes the output, while " + nameOf(reader) +
                 " may still read the input");
    }
    // Phases of any stream have ended once the pass's own has.
    for (std::size_t i = 0; i < schedule_.phases.size(); ++i) {
      if (schedule_.phases[i].stream == 0) continue;
      bool ends = false;
      for (std::size_t j = i + 1; j < schedule_.phases.size(); ++j)
        ends |= schedule_.phases[j].stream == 0 && before(i, j);
      if (!ends && isRead(i)) report("nothing of the pass's stream waits for " + nameOf(i));
    }
  }
  bool isRead(std::size_t phase) const {
    return std::ranges::any_of(schedule_.phases, [&](const Phase& other) {
      return std::ranges::any_of(other.reads, [&](int table) {
        return std::ranges::count(schedule_.phases[phase].writes, table) > 0;
      });
    });
  }

  const Schedule& schedule_;
  std::vector<std::vector<bool>> earlier_;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> verifyOrder(const Schedule& schedule) {
  return ScheduleOrderCheck(schedule).run();
}

}  // namespace moeccl

// Counts what each op waits for, lists those that wait for it, and numbers the messages of each
// pair and lane.
#include "src/exec/prepared_plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "src/exec/tag.h"

namespace moeccl {

PreparedPlan::PreparedPlan(Plan plan) : plan_(std::move(plan)) {
  if (plan_.lanes > 1 << kLaneBits)
    throw std::invalid_argument("a plan with " + std::to_string(plan_.lanes) + " lanes");
  const int count = ops();
  waitsFor_.resize(count);
  successorsBegin_.assign(count + 1, 0);
  sequence_.assign(count, 0);
  std::map<std::tuple<OpKind, int, int>, int> messages;
  for (int i = 0; i < count; ++i) {
    const Op& op = plan_.ops[i];
    for (OpRange dep : plan_.deps(op)) {
      waitsFor_[i] += dep.count;
      for (int d = dep.first; d < dep.first + dep.count; ++d) ++successorsBegin_[d + 1];
    }
    if (op.kind == OpKind::send || op.kind == OpKind::recv) {
      sequence_[i] = messages[{op.kind, op.peer, op.lane}]++;
      if (sequence_[i] >= 1 << kSequenceBits)
        throw std::invalid_argument("a plan with more than " + std::to_string(1 << kSequenceBits) +
                                    " messages between two ranks on one lane");
    }
    if (op.kind == OpKind::recv) {
      if (waitsFor_[i] > 0) throw std::invalid_argument("a plan whose receive has dependencies");
      receives_.push_back(i);
      messageBits_ |= messageNumber(0, static_cast<std::uint32_t>(op.lane),
                                    static_cast<std::uint32_t>(sequence_[i]));
    }
    if (op.kind == OpKind::send && waitsFor_[i] == 0) first_.push_back(i);
  }
  for (int i = 0; i < count; ++i)
    if (plan_.ops[i].kind != OpKind::send && plan_.ops[i].kind != OpKind::recv && waitsFor_[i] == 0)
      first_.push_back(i);

  for (int i = 0; i < count; ++i) successorsBegin_[i + 1] += successorsBegin_[i];
  successors_.resize(successorsBegin_[count]);
  std::vector<std::int32_t> fill(successorsBegin_.begin(), successorsBegin_.end() - 1);
  for (int i = 0; i < count; ++i)
    for (OpRange dep : plan_.deps(plan_.ops[i]))
      for (int d = dep.first; d < dep.first + dep.count; ++d) successors_[fill[d]++] = i;
}

}  // namespace moeccl

// What a pass gives to the experts where it stops for them.
#include <algorithm>

#include "src/route/pass_run.h"

namespace moeccl::schedules {

void PassRun::setExperts(const Phase& phase) {
  step_ = {};
  step_.backward = phase.backward;
  const int rows = phase.reads[0];
  void* const given = at(rows);
  void* const made = at(phase.writes[0]);
  if (phase.backward) {
    step_.given = at(phase.reads[1]);
    step_.gradients = made;
    if (made != given) mover_.copy(made, given, elements(rows), stream_);
  } else {
    step_.given = given;
    step_.made = made;
  }
  if (has(table(rows), Dim::keptRows) && expert_ >= 0) {
    const std::span<const std::int64_t> all = work_.keptBegins();
    const auto expert = static_cast<std::size_t>(expert_);
    step_.first = expert_;
    begins_[0] = 0;
    begins_[1] = all[expert + 1] - all[expert];
    step_.begins = {begins_.data(), 2};
    return;
  }
  step_.begins = beginsOf(rows);
  if (phase.copies && phase.backward && groups_.mp.ranks > 1) listCopies(rows);
}

// Where the rows of each of the rank's experts begin.
std::span<const std::int64_t> PassRun::beginsOf(int rows) {
  if (has(table(rows), Dim::keptRows)) return work_.keptBegins();
  const auto experts = static_cast<std::size_t>(sizes_.at(Dim::localExperts));
  begins_[0] = 0;
  for (std::size_t i = 0; i < experts; ++i)
    begins_[i + 1] =
        begins_[i] + (hasRuns(table(rows)) ? layout(rows).parts()[i]
                                           : elements(rows) / sizes_.at(Dim::embedding) /
                                                 static_cast<std::int64_t>(experts));
  return begins_;
}

// Lists the rows run by run. Ranks of an MP group bring the same rows; those of the first rank
// count.
void PassRun::listCopies(int rows) {
  copies_.clear();
  std::int64_t begin = 0;
  const auto place = [&](int ep, int esp, std::int64_t expert, std::int64_t count) {
    const bool counts = (groups_.shape.order == moecclOrderEspEp ? ep * groups_.esp.ranks + esp
                                                                 : esp * groups_.ep.ranks + ep) %
                            groups_.mp.ranks ==
                        0;
    if (!copies_.empty() && copies_.back().expert == expert && copies_.back().counts == counts)
      copies_.back().count += count;
    else
      copies_.push_back({expert, begin, count, counts});
    begin += count;
  };
  if (hasRuns(table(rows))) {
    layout(rows).each([&](int ep, int esp, std::int64_t expert) {
      place(ep, esp, expert, layout(rows).count(ep, esp, expert));
    });
  } else {
    const std::int64_t experts = sizes_.at(Dim::localExperts);
    const std::int64_t count =
        elements(rows) / sizes_.at(Dim::embedding) / experts / groups_.ep.ranks / groups_.esp.ranks;
    for (std::int64_t expert = 0; expert < experts; ++expert)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep)
        for (int esp = 0; esp < groups_.esp.ranks; ++esp) place(ep, esp, expert, count);
  }
  step_.copies = copies_;
}

}  // namespace moeccl::schedules

// Passes around the caller's experts, part by part.
#include <algorithm>

#include "src/route/pass_run.h"

namespace moeccl::schedules {

// What a phase of such a pass belongs to. Nobody gates, so nobody needs what gates sum up, nor
// gradients of their weights.
PassRun::Part PassRun::partOf(const Half& half, std::size_t index) {
  const Phase& phase = half.schedule().phases[index];
  const auto all = [&](auto is) {
    return std::ranges::all_of(phase.writes, [&](int written) {
      return is(half.schedule().tables[static_cast<std::size_t>(written)]);
    });
  };
  if (phase.kind == Kind::experts || (phase.kind == Kind::gate && phase.backward) ||
      all([&](const Table& it) { return has(it, Dim::sums) || has(it, Dim::gateWeights); }))
    return Part::none;
  if (phase.kind == Kind::gate || phase.kind == Kind::route ||
      all([](const Table& it) { return it.element == Element::count64; }))
    return Part::tells;
  return index < half.experts ? Part::before : Part::behind;
}

// Once ranks have told each other. Then it is known how many rows come, whatever runs next.
void PassRun::bindAll() {
  for (const Phase& phase : schedule().phases) bindRowsOf(phase);
}

std::span<const std::int64_t> PassRun::rowBegins() {
  half_ = &forward_;
  return beginsOf(schedule().phases[half_->experts].reads[0]);
}

void PassRun::countRows(std::span<std::int64_t> counts) {
  const std::span<const std::int64_t> begins = rowBegins();
  const int rows = schedule().phases[half_->experts].reads[0];
  const int eps = groups_.ep.ranks, esps = groups_.esp.ranks;
  const std::int64_t ranks = eps * esps;
  const auto at = [&](std::int64_t expert, std::int64_t rank) -> std::int64_t& {
    return counts[static_cast<std::size_t>(expert * ranks + rank)];
  };
  if (half_->layouts[static_cast<std::size_t>(rows)])
    return layout(rows).each([&](int ep, int esp, std::int64_t expert) {
      at(expert, groups_.shape.order == moecclOrderEspEp ? ep * esps + esp : esp * eps + ep) +=
          layout(rows).count(ep, esp, expert);
    });
  // What is selected by index is here already; places are alike of all ranks.
  const bool here = has(table(rows), Dim::keptRows);
  for (std::int64_t expert = 0; expert < sizes_.at(Dim::localExperts); ++expert) {
    const std::int64_t count =
        begins[static_cast<std::size_t>(expert) + 1] - begins[static_cast<std::size_t>(expert)];
    if (here) at(expert, groups_.world.rank) += count;
    for (std::int64_t rank = 0; rank < ranks && !here; ++rank) at(expert, rank) += count / ranks;
  }
}

}  // namespace moeccl::schedules

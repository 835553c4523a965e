// Passes around the caller's experts, call by call.
#include <algorithm>

#include "src/route/executor.h"

namespace moeccl::schedules {

// What a phase of such a pass belongs to. Nobody gates, so nobody needs what gates sum up, nor
// gradients of their weights.
PassRun::Part PassRun::partOf(const Half& half, std::size_t index) const {
  const Phase& phase = half.schedule().phases[index];
  const auto all = [&](auto is) {
    return std::ranges::all_of(phase.writes, [&](int written) {
      return is(half.schedule().tables[static_cast<std::size_t>(written)]);
    });
  };
  const auto has = [](const Table& table, Dim dim) {
    return std::ranges::count(table.shape, dim) > 0;
  };
  if (phase.kind == Kind::experts || (phase.kind == Kind::gate && phase.backward) ||
      all([&](const Table& it) { return has(it, Dim::sums) || has(it, Dim::gateWeights); }))
    return Part::none;
  if (phase.kind == Kind::gate || phase.kind == Kind::route ||
      all([](const Table& it) { return it.element == Element::count64; }))
    return Part::tells;
  return index < half.experts ? Part::before : Part::behind;
}

void PassRun::runPart(Part part, moecclStream_t stream) {
  stream_ = stream;
  const std::vector<Phase>& phases = schedule().phases;
  ran_.assign(phases.size(), 0);
  std::ranges::fill(joined_, -1);
  std::ranges::fill(queued_, -1);
  if (timed_ && part != Part::behind) last_ = Clock::now();
  for (next_ = 0; next_ < phases.size(); ++next_)
    if (partOf(*half_, next_) == part) {
      ran_[next_] = 1;
      for (const int table : phases[next_].writes)
        half_->written[static_cast<std::size_t>(table)] = 0;
    }
  for (next_ = 0; next_ < phases.size(); ++next_) {
    if (ran_[next_] == 0) continue;
    const Phase& phase = phases[next_];
    wait(next_);
    if (part != Part::tells) bind(phase);
    run(phase);
    lap(next_);
    for (const int table : phase.writes) half_->written[static_cast<std::size_t>(table)] = 1;
  }
  joinAll();
}

void PassRun::tell(moecclStream_t stream) {
  start(moeccl::Pass::forward, nullptr, nullptr, stream);
  runPart(Part::tells, stream);
  for (const Phase& phase : schedule().phases) {
    const bool late = std::ranges::any_of(
        phase.writes, [&](int written) { return half_->binding.late(written); });
    const int counts = phase.reads.back();
    if (late && table(counts).element == Element::count64 && table(counts).role == Role::made)
      bindRows(counts);
  }
}

void PassRun::toRows(const void* tokens, void* rows, moecclStream_t stream) {
  half_ = &forward_;
  input_ = tokens;
  rows_ = rows;
  runPart(Part::before, stream);
}

void PassRun::toTokens(const void* results, void* output, moecclStream_t stream) {
  half_ = &forward_;
  results_ = results;
  output_ = output;
  lap(half_->experts);
  runPart(Part::behind, stream);
  finish();
}

void PassRun::toRowsBackward(const void* outputGradients, const void* results, void* rowGradients,
                             moecclStream_t stream) {
  half_ = &*backward_;
  if (timed_) std::ranges::fill(times_, 0);
  input_ = outputGradients;
  again_ = results;
  rows_ = rowGradients;
  runPart(Part::before, stream);
}

void PassRun::toTokensBackward(const void* rowGradients, void* tokenGradients,
                               moecclStream_t stream) {
  half_ = &*backward_;
  results_ = rowGradients;
  output_ = tokenGradients;
  lap(half_->experts);
  runPart(Part::behind, stream);
  finish();
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
  const bool here = std::ranges::count(table(rows).shape, Dim::keptRows) > 0;
  for (std::int64_t expert = 0; expert < sizes_.at(Dim::localExperts); ++expert) {
    const std::int64_t count =
        begins[static_cast<std::size_t>(expert) + 1] - begins[static_cast<std::size_t>(expert)];
    if (here) at(expert, groups_.world.rank) += count;
    for (std::int64_t rank = 0; rank < ranks && !here; ++rank) at(expert, rank) += count / ranks;
  }
}

}  // namespace moeccl::schedules

// Runs passes in the order of 1F1B, and sends what stages need of each other.
#include "pipeline.h"

#include <algorithm>
#include <array>

namespace train {

Pipeline::Pipeline(moecclComm_t world, const Team& team, std::size_t count)
    : team_(team), count_(count), received_(count) {
  // Link s joins stages s and s + 1; even ones are made first, then odd ones, as a rank has one of
  // each.
  for (const int parity : {0, 1}) {
    const bool behind = team.stage() % 2 == parity;
    const int link = behind ? team.stage() : team.stage() - 1;
    const bool exists = link >= 0 && link < team.stages() - 1;
    require(moecclCommSplit(
                world, exists ? link * team.stageRanks() + team.stageRank() : MOECCL_SPLIT_NOCOLOR,
                team.rank(), behind ? &next_ : &previous_, nullptr),
            "splitting", world);
  }
}

Pipeline::~Pipeline() {
  require(moecclCommDestroy(previous_), "leaving the previous stage");
  require(moecclCommDestroy(next_), "leaving the next stage");
}

std::int64_t Pipeline::ahead(std::int64_t passes) const {
  return std::min<std::int64_t>(team_.stages() - 1 - team_.stage(), passes);
}

std::int64_t Pipeline::models(std::int64_t passes) const {
  return std::min(ahead(passes) + 1, passes);
}

void Pipeline::run(const std::vector<std::unique_ptr<Model>>& models, std::int64_t passes,
                   const Call& forward, const Call& backward) {
  const auto modelOf = [&](std::int64_t pass) -> Model& {
    return *models[static_cast<std::size_t>(pass) % models.size()];
  };
  const auto streamOf = [&](std::int64_t pass) { return modelOf(pass).stream().data(); };
  const auto goForward = [&](std::int64_t pass) {
    if (previous_ != nullptr) std::copy(received_.begin(), received_.end(), streamOf(pass));
    forward(modelOf(pass), pass);
  };
  Real* const received = received_.data();
  const std::int64_t ahead = this->ahead(passes);

  for (std::int64_t pass = 0; pass < ahead; ++pass) {
    exchange(previous_, nullptr, received);
    goForward(pass);
    exchange(next_, streamOf(pass), nullptr);
  }
  if (ahead < passes) exchange(previous_, nullptr, received);
  for (std::int64_t pass = ahead; pass < passes; ++pass) {
    const std::int64_t returning = pass - ahead;
    goForward(pass);
    exchange(next_, streamOf(pass), streamOf(returning));
    backward(modelOf(returning), returning);
    exchange(previous_, streamOf(returning), pass + 1 < passes ? received : nullptr);
  }
  for (std::int64_t pass = passes - ahead; pass < passes; ++pass) {
    exchange(next_, nullptr, streamOf(pass));
    backward(modelOf(pass), pass);
    exchange(previous_, streamOf(pass), nullptr);
  }
}

void Pipeline::exchange(moecclComm_t link, const Real* sent, Real* received) const {
  if (link == nullptr) return;
  int rank = 0;
  require(moecclCommUserRank(link, &rank), "asking for the rank", link);
  const auto peer = static_cast<std::size_t>(1 - rank);
  std::array<std::size_t, 2> sendCounts{}, receiveCounts{};
  const std::array<std::size_t, 2> begin{};
  if (sent != nullptr) sendCounts[peer] = count_;
  if (received != nullptr) receiveCounts[peer] = count_;
  require(moecclAllToAllv(sent, sendCounts.data(), begin.data(), received, receiveCounts.data(),
                          begin.data(), kReal, link, nullptr),
          "passing on to the next stage", link);
}

}  // namespace train

#include "src/select/schedule_terms.h"

#include <algorithm>

namespace moeccl {
namespace {

// As in Parm: a batch's tokens, and the places of all experts for them, in elements.
struct Volumes {
  explicit Volumes(const LayerSizes& sizes)
      : tokens(static_cast<double>(sizes.tokens)),
        embedding(static_cast<double>(sizes.embedding)),
        experts(static_cast<double>(sizes.experts)),
        choices(static_cast<double>(sizes.choices)),
        mp(sizes.grid.mp),
        ep(sizes.grid.ep),
        esp(sizes.grid.esp),
        batch(tokens * embedding),
        part(static_cast<double>(sizes.partTokens) * embedding),
        places(experts * static_cast<double>(sizes.capacity) * embedding),
        hidden(static_cast<double>(sizes.localHidden)) {}

  double tokens, embedding, experts, choices, mp, ep, esp;
  double batch, part, places, hidden;
};

constexpr double kBytes = 4;         // of an element
constexpr double kSumBytes = 4 * 8;  // of a part's gate sums, per expert

std::array<double, kLocalFeatures> localWork(const Volumes& volumes, double gated, double products,
                                             double moved) {
  LocalWork work;
  work.tokens = gated;
  work.embedding = volumes.embedding;
  work.hidden = volumes.hidden;
  work.experts = volumes.experts;
  work.rows = products / volumes.embedding;
  auto features = featuresOf(work);
  features[kMoves] = moved;
  return features;
}

ScheduleTerms baseline(const Volumes& v) {
  ScheduleTerms terms;
  terms.exchanges = {
      {"ESP-AllGather", Collective::allGather, GroupKind::esp, v.batch * kBytes},
      {"first EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * v.esp * kBytes},
      {"ESP-AllReduce", Collective::allReduce, GroupKind::esp, v.places * v.esp * kBytes},
      {"second EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * kBytes},
  };
  // Every batch of the ESP group to its places, twice around, and its own back.
  const double moved = (2 * v.esp + 1) * v.places + v.choices * v.batch;
  terms.local = localWork(v, v.tokens * v.esp, v.places * v.esp, moved);
  return terms;
}

ScheduleTerms s1(const Volumes& v) {
  ScheduleTerms terms;
  const double places = v.places / v.mp;
  terms.exchanges = {
      {"dispatch", Collective::dispatch, GroupKind::world, places * kBytes},
      {"combine", Collective::combine, GroupKind::world, places * v.esp * kBytes},
      {"MP-AllGather", Collective::allGather, GroupKind::mp, v.part * kBytes},
      {"MP-AllGather of the gate's sums", Collective::allGather, GroupKind::mp,
       v.experts * kSumBytes},
  };
  terms.local = localWork(v, v.tokens / v.mp, places * v.esp, places + v.choices * v.part);
  return terms;
}

ScheduleTerms s2(const Volumes& v) {
  ScheduleTerms terms;
  const double places = v.places / v.mp;
  terms.exchanges = {
      {"dispatch", Collective::splitDispatch, GroupKind::world, v.places * kBytes},
      {"SAA", Collective::combineAllGather, GroupKind::world, places * v.esp * kBytes},
  };
  terms.local = localWork(v, v.tokens, places * v.esp, v.places + v.choices * v.batch);
  return terms;
}

ScheduleTerms ppMoe(const Volumes& v) {
  ScheduleTerms terms;
  terms.exchanges = {{"AllReduce", Collective::allReduce, GroupKind::mp, v.batch * kBytes}};
  // Balanced experts: what capacity keeps, a share of it on each rank.
  const double kept = std::min(v.choices * v.batch, v.places) / v.ep;
  terms.local = localWork(v, v.tokens, kept, 2 * kept + v.batch);
  return terms;
}

}  // namespace

ScheduleTerms termsOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes) {
  const Volumes volumes(sizes);
  (void)pass;
  ScheduleTerms terms;
  switch (schedule) {
    case moecclScheduleBaseline:
      terms = baseline(volumes);
      break;
    case moecclScheduleS1:
      terms = s1(volumes);
      break;
    case moecclScheduleS2:
      terms = s2(volumes);
      break;
    case moecclSchedulePpMoe:
      terms = ppMoe(volumes);
      break;
    default:
      break;
  }
  const auto ranksOf = [&](GroupKind kind) {
    const Grid& grid = sizes.grid;
    return kind == GroupKind::world ? grid.ranks()
           : kind == GroupKind::mp  ? grid.mp
           : kind == GroupKind::ep  ? grid.ep
                                    : grid.esp;
  };
  std::erase_if(terms.exchanges, [&](const Exchange& it) { return ranksOf(it.group) == 1; });
  return terms;
}

}  // namespace moeccl

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
        width(static_cast<double>(sizes.width)),
        logits(static_cast<double>(sizes.logits)),
        sums(static_cast<double>(sizes.sums)),
        mp(sizes.grid.mp),
        ep(sizes.grid.ep),
        esp(sizes.grid.esp),
        batch(tokens * embedding),
        part(static_cast<double>(sizes.partTokens) * embedding),
        places(experts * static_cast<double>(sizes.capacity) * embedding),
        hidden(static_cast<double>(sizes.localHidden)),
        bytes(static_cast<double>(sizes.elementBytes)) {}

  double tokens, embedding, experts, choices, width, logits, sums, mp, ep, esp;
  double batch, part, places, hidden;
  double bytes;  // of an element
};

constexpr double kSumBytes = 8;  // of one of a part's gate sums

std::array<double, kLocalFeatures> localWork(const Volumes& volumes, double gated, double products,
                                             double moved) {
  LocalWork work;
  work.tokens = gated;
  work.embedding = volumes.embedding;
  work.hidden = volumes.hidden;
  work.experts = volumes.logits;
  work.rows = products / volumes.embedding;
  auto features = featuresOf(work);
  features[kMoves] = moved;
  return features;
}

ScheduleTerms baseline(const Volumes& v) {
  ScheduleTerms terms;
  terms.exchanges = {
      {"ESP-AllGather", Collective::allGather, GroupKind::esp, v.batch * v.bytes},
      {"first EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * v.esp * v.bytes},
      {"ESP-AllReduce", Collective::allReduce, GroupKind::esp, v.places * v.esp * v.bytes},
      {"second EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * v.bytes},
  };
  // Every batch of the ESP group to its places, twice around, and its own back.
  const double moved = (2 * v.esp + 1) * v.places + v.choices * v.batch;
  terms.local = localWork(v, v.tokens * v.esp, v.places * v.esp, moved);
  return terms;
}

ScheduleTerms baselineBackward(const Volumes& v) {
  ScheduleTerms terms;
  terms.exchanges = {
      {"first EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * v.bytes},
      {"ESP-AllGather", Collective::allGather, GroupKind::esp, v.places * v.bytes},
      {"ESP-ReduceScatter", Collective::reduceScatter, GroupKind::esp, v.places * v.esp * v.bytes},
      {"second EP-AlltoAll", Collective::allToAll, GroupKind::ep, v.places * v.bytes},
  };
  // All places of the ESP group four times around.
  const double moved = (4 * v.esp + 1) * v.places + v.choices * v.batch;
  terms.local = localWork(v, v.tokens, v.places * v.esp, moved);
  return terms;
}

ScheduleTerms s1(const Volumes& v, Pass pass) {
  ScheduleTerms terms;
  const double places = v.places / v.mp;
  terms.exchanges = {
      {"dispatch", Collective::dispatch, GroupKind::world, places * v.bytes},
      {"combine", Collective::combine, GroupKind::world, places * v.esp * v.bytes},
      {"MP-AllGather", Collective::allGather, GroupKind::mp, v.part * v.bytes},
  };
  if (pass == Pass::forward)
    terms.exchanges.push_back({"MP-AllGather of the gate's sums", Collective::allGather,
                               GroupKind::mp, v.sums * kSumBytes});
  else
    terms.exchanges.push_back({"MP-AllReduce of the gate's gradient", Collective::allReduce,
                               GroupKind::mp, v.logits * v.embedding * v.bytes});
  terms.local = localWork(v, v.tokens / v.mp, places * v.esp, places + v.choices * v.part);
  return terms;
}

// Both ways alike.
ScheduleTerms s2(const Volumes& v) {
  ScheduleTerms terms;
  const double places = v.places / v.mp;
  terms.exchanges = {
      {"dispatch", Collective::splitDispatch, GroupKind::world, v.places * v.bytes},
      {"SAA", Collective::combineAllGather, GroupKind::world, places * v.esp * v.bytes},
  };
  terms.local = localWork(v, v.tokens, places * v.esp, v.places + v.choices * v.batch);
  return terms;
}

ScheduleTerms ppMoe(const Volumes& v, Pass pass) {
  ScheduleTerms terms;
  // The gradients of the choices' weights come with those of the tokens.
  const double reduced = pass == Pass::forward ? v.batch : v.batch + v.tokens * v.width;
  terms.exchanges = {{"AllReduce", Collective::allReduce, GroupKind::mp, reduced * v.bytes}};
  // Balanced experts: what capacity keeps, a share of it on each rank.
  const double kept = std::min(v.choices * v.batch, v.places) / v.ep;
  terms.local = localWork(v, v.tokens, kept, 2 * kept + v.batch);
  return terms;
}

ScheduleTerms allTerms(moecclSchedule_t schedule, Pass pass, const Volumes& volumes) {
  switch (schedule) {
    case moecclScheduleBaseline:
      return pass == Pass::forward ? baseline(volumes) : baselineBackward(volumes);
    case moecclScheduleS1:
      return s1(volumes, pass);
    case moecclScheduleS2:
      return s2(volumes);
    case moecclSchedulePpMoe:
      return ppMoe(volumes, pass);
    default:
      return {};
  }
}

}  // namespace

ScheduleTerms termsOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes) {
  ScheduleTerms terms = allTerms(schedule, pass, Volumes(sizes));
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

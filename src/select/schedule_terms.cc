#include "src/select/schedule_terms.h"

#include <algorithm>

namespace moeccl {
namespace {

// As in Parm: a batch's tokens, and the places of all experts for them, or what they are given, in elements.
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
        places(sizes.dropless ? choices * batch
                              : experts * static_cast<double>(sizes.capacity) * embedding),
        hidden(static_cast<double>(sizes.localHidden)),
        residual(static_cast<double>(sizes.residual)),
        bytes(static_cast<double>(sizes.elementBytes)),
        chunks(static_cast<int>(std::max<std::int64_t>(sizes.chunks, 1))) {}

  double tokens, embedding, experts, choices, width, logits, sums, mp, ep, esp;
  double batch, part, places, hidden, residual;
  double bytes;  // of an element
  int chunks;    // of S1
};

constexpr double kSumBytes = 8;  // of one of a part's gate sums, and of a count

constexpr const char* kReduceRows = "ESP-ReduceScatter of the rows";

std::array<double, kLocalFeatures> localWork(const Volumes& volumes, double gated, double products,
                                             double moved) {
  LocalWork work;
  work.tokens = gated;
  work.embedding = volumes.embedding;
  work.hidden = volumes.hidden;
  work.experts = volumes.logits;
  work.rows = products / volumes.embedding;
  work.ownExperts = volumes.experts / volumes.ep;
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

// What S1 does once experts have returned its tokens.
void addParts(const Volumes& v, Pass pass, std::vector<Exchange>& exchanges) {
  exchanges.push_back({"MP-AllGather", Collective::allGather, GroupKind::mp,
                       v.part * v.bytes / v.chunks, v.chunks});
  if (pass == Pass::forward)
    exchanges.push_back({"MP-AllGather of the gate's sums", Collective::allGather, GroupKind::mp,
                         v.sums * kSumBytes});
  else
    exchanges.push_back({"MP-AllReduce of the gate's gradient", Collective::allReduce,
                         GroupKind::mp, v.logits * v.embedding * v.bytes});
}

ScheduleTerms s1(const Volumes& v, Pass pass) {
  ScheduleTerms terms;
  const double places = v.places / v.mp;
  terms.exchanges = {
      {"dispatch", Collective::dispatch, GroupKind::world, places * v.bytes / v.chunks, v.chunks},
      {"combine", Collective::combine, GroupKind::world, places * v.esp * v.bytes / v.chunks,
       v.chunks},
  };
  addParts(v, pass, terms.exchanges);
  terms.local = localWork(v, v.tokens / v.mp, places * v.esp, places + v.choices * v.part);
  return terms;
}

// As src/moe/row_exchange.h has them: of the counts of so many batches, and of a rank's own rows.
Exchange rowCounts(const Volumes& v, double batches) {
  return {"EP-AlltoAll of the counts", Collective::allToAll, GroupKind::ep,
          v.experts * batches * kSumBytes};
}

std::vector<Exchange> rowExchanges(const Volumes& v, double own) {
  const double given = own * v.esp;
  return {
      {"EP-AlltoAllv to the experts", Collective::allToAllv, GroupKind::ep, own * v.bytes},
      {"ESP-AllGather of the rows", Collective::allToAllv, GroupKind::esp, given * v.bytes},
      {kReduceRows, Collective::allToAllv, GroupKind::esp, given * v.bytes},
      {"EP-AlltoAllv from the experts", Collective::allToAllv, GroupKind::ep, own * v.bytes},
  };
}

ScheduleTerms droplessS1(const Volumes& v, Pass pass) {
  ScheduleTerms terms;
  const double own = v.places / v.mp;
  if (pass == Pass::forward) {
    terms.exchanges = {rowCounts(v, 1),
                       {"ESP-AllGather of the counts", Collective::allGather, GroupKind::esp,
                        v.experts * kSumBytes}};
  }
  const std::vector<Exchange> rows = rowExchanges(v, own);
  terms.exchanges.insert(terms.exchanges.end(), rows.begin(), rows.end());
  addParts(v, pass, terms.exchanges);
  // To the rows, into the order of experts and back.
  const double moved = (1 + 2 * v.esp) * own + v.choices * v.part;
  terms.local = localWork(v, v.tokens / v.mp, own * v.esp, moved);
  return terms;
}

ScheduleTerms droplessBaseline(const Volumes& v, Pass pass) {
  ScheduleTerms terms;
  const double given = v.places * v.esp;
  if (pass == Pass::forward) {
    terms.exchanges = {
        {"ESP-AllGather", Collective::allGather, GroupKind::esp, v.batch * v.bytes},
        rowCounts(v, v.esp),
        {"EP-AlltoAllv to the experts", Collective::allToAllv, GroupKind::ep, given * v.bytes},
        {"ESP-AllReduce", Collective::allReduce, GroupKind::esp, given * v.bytes},
        {"EP-AlltoAllv from the experts", Collective::allToAllv, GroupKind::ep, v.places * v.bytes},
    };
  } else {
    terms.exchanges = rowExchanges(v, v.places);
  }
  const double moved = 2 * given + v.places + v.choices * v.batch;
  terms.local = localWork(v, v.tokens * (pass == Pass::forward ? v.esp : 1), given, moved);
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

ScheduleTerms allTerms(moecclSchedule_t schedule, Pass pass, const Volumes& volumes,
                       bool dropless) {
  switch (schedule) {
    case moecclScheduleBaseline:
      if (dropless) return droplessBaseline(volumes, pass);
      return pass == Pass::forward ? baseline(volumes) : baselineBackward(volumes);
    case moecclScheduleS1:
      return dropless ? droplessS1(volumes, pass) : s1(volumes, pass);
    case moecclScheduleS2:
      return s2(volumes);
    case moecclSchedulePpMoe:
      return ppMoe(volumes, pass);
    default:
      return {};
  }
}

// What the residual branch adds: a part's tokens through it, and exchanges where the schedule starts them.
void addResidual(moecclSchedule_t schedule, Pass pass, const Volumes& v, ScheduleTerms& terms) {
  const double elements = v.part;
  terms.local[kProducts] += elements * v.residual;
  terms.local[kActivations] += elements / v.embedding * v.residual;
  terms.local[kMoves] += elements;
  const bool gathers = schedule == moecclScheduleBaseline || schedule == moecclScheduleS2;
  const auto dispatched = std::ranges::find_if(terms.exchanges, [](const Exchange& it) {
    return it.collective == Collective::combine || it.name == kReduceRows;
  });
  auto at = schedule == moecclScheduleS1 ? dispatched : terms.exchanges.begin();
  if (pass == Pass::backward) {
    const double weights = 2 * v.embedding * v.residual + v.residual + v.embedding;
    at = terms.exchanges.insert(at, {"MP-AllReduce of the residual branch's gradient",
                                     Collective::allReduce, GroupKind::mp, weights * v.bytes});
  }
  if (gathers)
    terms.exchanges.insert(at, {"MP-AllGather of the residual branch", Collective::allGather,
                                GroupKind::mp, v.part * v.bytes});
}

}  // namespace

ScheduleTerms termsOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes) {
  const Volumes volumes(sizes);
  ScheduleTerms terms = allTerms(schedule, pass, volumes, sizes.dropless);
  if (sizes.residual > 0) addResidual(schedule, pass, volumes, terms);
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

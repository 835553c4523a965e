// A schedule that the library does not have: S1 without dispatch and combine. Rows go to the own
// shard of their experts, and its ESP group hands them on; backwards it adds them up first.
//
//   part -> gate, permute -> rows [E][T / N_MP] -> EP-AlltoAll -> ESP-AllGather -> experts
//        -> ESP-ReduceScatter -> EP-AlltoAll -> un-permute -> MP-AllGather -> output
//
// Bytes that leave a rank, with y = E T M s: (1 - 1 / N_EP) y / N_MP in each EP-AlltoAll,
// (N_ESP - 1) y / N_MP in the ESP-AllGather and in the ESP-ReduceScatter.
#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

Schedule invented() {
  constexpr Dim kExperts = Dim::localExperts, kPlaces = Dim::slots, kWidth = Dim::embedding;
  Builder s("invented", Pass::forward);
  s.schedule().needs.wholeGroups = true;
  const int input = s.input();
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int part = s.split(GroupKind::mp, input, "part");
  const auto [routing, sums] = s.gate(part, weights);
  const int rows = s.permute(part, routing, {Dim::ep, kExperts, kPlaces, kWidth}, "rows");
  const int arrived =
      s.exchange(Collective::allToAll, GroupKind::ep, rows, "arrived", "EP-AlltoAll there");
  const int gathered = s.exchange(Collective::allGather, GroupKind::esp, arrived, "gathered");
  const int sorted =
      s.regroup(gathered, {Dim::ep, kExperts, Dim::esp, kPlaces, kWidth}, "sorted by expert");
  const int given = s.regroup(sorted, {kExperts, Dim::ep, Dim::esp, kPlaces, kWidth}, "given");
  const int made = s.experts(given, "made");
  const int returned =
      s.regroup(made, {Dim::ep, kExperts, Dim::esp, kPlaces, kWidth}, "made by rank");
  const int byShard =
      s.regroup(returned, {Dim::esp, Dim::ep, kExperts, kPlaces, kWidth}, "made by shard");
  const int whole = s.exchange(Collective::reduceScatter, GroupKind::esp, byShard, "whole");
  const int back =
      s.exchange(Collective::allToAll, GroupKind::ep, whole, "back", "EP-AlltoAll back");
  const int own = s.combine(back, routing, "own");
  s.output(s.join(s.exchange(Collective::allGather, GroupKind::mp, own, "all parts"), "output"));
  s.exchange(Collective::allGather, GroupKind::mp, sums, "all sums",
             "MP-AllGather of the gate's sums");
  return s.build();
}

}  // namespace moeccl::schedules

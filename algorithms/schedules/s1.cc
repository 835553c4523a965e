// S1: MP is paused before the gate and resumed after the combine (Parm III-B, figure 3(b)). With
// C = T / N_MP, the places per expert of one part, and every array followed by [embedding]:
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | gate, permute
//   rows             [E][C]
//     | dispatch
//   given            [E_local][P][C]                      by the rank it came from
//     | experts: partial sums, of the caller's hidden units
//   made             [E_local][P][C]
//     | combine: sums over the shards
//   back             [E][C]
//     | un-permute, weighted
//   own              [padded tokens / N_MP]
//     | MP-AllGather
//   output           [tokens]
//
// The gate's sums over the parts are gathered too, since the loss is that of the whole batch.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (1 - 1 / P) y / N_MP in dispatch
// and in combine when every shard gets a copy of its own (flat), (1 - 1 / N_MP) x in the
// MP-AllGather.
//
// Backward is the mirror: MP-Split, dispatch, experts, combine, MP-AllGather, and an AllReduce that
// adds the gate's gradients by the parts. Beside that as many bytes leave a rank as forward.
//
// Without capacity (dropless) dispatch is an EP-AlltoAllv and an ESP-AllGather of the rows, and
// combine the same backwards, which leave (1 - 1 / N_EP) k x / N_MP and (N_ESP - 1) k x / N_MP each
// way where experts have equal loads.
#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

Schedule s1() {
  Builder s("S1", Pass::forward);
  s.schedule().needs.wholeGroups = true;
  const int input = s.input();
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int part = s.split(GroupKind::mp, input, "part");
  const auto [routing, sums] = s.gate(part, weights);
  const int rows =
      s.permute(part, routing, {Dim::ep, Dim::localExperts, Dim::slots, Dim::embedding}, "rows");
  const int given = s.exchange(Collective::dispatch, GroupKind::world, rows, "given");
  const int made = s.experts(given, "made");
  const int back = s.exchange(Collective::combine, GroupKind::world, made, "back");
  const int own = s.combine(back, routing, "own");
  const int gathered = s.exchange(Collective::allGather, GroupKind::mp, own, "gathered");
  s.output(s.join(gathered, "output"));
  s.exchange(Collective::allGather, GroupKind::mp, sums, "all sums",
             "MP-AllGather of the gate's sums");
  return s.build();
}

}  // namespace moeccl::schedules

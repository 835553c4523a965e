// S2: MP is paused after the gate and resumed with the combine (Parm III-B, figure 3(c); III-D).
// With C = T / N_MP, the places per expert of one rank, and every array followed by [embedding]:
//
//   input            [tokens]
//     | gate, permute: the same on all ranks of the MP group
//   rows             [E][N_MP][C]
//     | MP-Split of the capacity, and dispatch
//   given            [E_local][P][C]                      by the rank it came from
//     | experts: partial sums, of the caller's hidden units
//   made             [E_local][P][C]
//     | SAA: combine and MP-AllGather at once
//   back             [E][N_MP][C]
//     | un-permute, weighted
//   output           [tokens]
//
// Rank i of the MP group takes places [i C, (i + 1) C) of every expert to it. Capacity groups may
// cross from one rank's places to the next.
//
// Bytes that leave a rank, with y = E T M N_ESP s: (1 - 1 / P) y / N_MP in the dispatch, as much in
// the SAA, and in its MP-AllGather (1 - 1 / N_MP) y / N_ESP.
//
// Backward is the mirror, with as many bytes: the SAA's is MP-Split and dispatch, and the other way
// round. The gradients of tokens and of the gate are the same on all ranks of the MP group.
#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

Schedule s2() {
  Builder s("S2", Pass::forward);
  const int input = s.input();
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int routing = s.gate(input, weights).routing;
  const int rows = s.permute(
      input, routing, {Dim::ep, Dim::localExperts, Dim::mp, Dim::slots, Dim::embedding}, "rows");
  const int given = s.exchange(Collective::splitDispatch, GroupKind::world, rows, "given");
  const int made = s.experts(given, "made");
  const int back = s.exchange(Collective::combineAllGather, GroupKind::world, made, "back");
  s.output(s.combine(back, routing, "output"));
  return s.build();
}

}  // namespace moeccl::schedules

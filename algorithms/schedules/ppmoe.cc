// PPMoE: the MP group holds all experts, and its ranks have all tokens already; only results need
// an exchange (PPMoE 3.3). Every array is followed by [embedding]:
//
//   input            [tokens]
//     | gate, the same on all ranks of the MP group
//     | for each of the caller's experts, one after another:
//   rows             its tokens, selected by index         [kept choices of it]
//     |     | expert: partial sums, of the caller's hidden units
//   made             [kept choices of it]
//     |     | weighted, added to
//   partial          [tokens]
//     | AllReduce: adds experts and shards
//   output           [tokens]
//
// No place is left empty, so nothing is padded; capacity only drops choices. Bytes that leave a
// rank, with x = B L M s: 2 (1 - 1 / P) x.
//
// Backward is the mirror: experts one after another add to partial gradients of tokens and of the
// choices' weights; an AllReduce of both makes them whole, [tokens] and [tokens][k], for the gate's
// backward, which is the same on all ranks. Bytes that leave a rank: 2 (1 - 1 / P) (1 + k / M) x.
#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

Schedule ppmoe() {
  Builder s("PPMoE", Pass::forward);
  s.schedule().needs.expertsInMp = true;
  const int input = s.input();
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int routing = s.gate(input, weights).routing;
  const int rows =
      s.permute(input, routing, {Dim::localExperts, Dim::keptRows, Dim::embedding}, "rows");
  s.at(rows).held = {State::split, State::split, State::replicated};
  s.last().oneByOne = true;
  const int made = s.experts(rows, "made");
  s.last().oneByOne = true;
  const int partial = s.combine(made, routing, "partial");
  s.last().oneByOne = true;
  s.output(s.exchange(Collective::allReduce, GroupKind::mp, partial, "output", "AllReduce"));
  return s.build();
}

}  // namespace moeccl::schedules

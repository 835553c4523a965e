// The baseline: DeepSpeed-MoE with expert sharding, as Parm draws it (figure 3(a)). With C = T, the
// places per expert of one batch, and every array followed by [embedding]:
//
//   input            [tokens]
//     | ESP-AllGather
//   gathered         [N_ESP][tokens]                      the batches of the ESP group's ranks
//     | gate, each batch by itself; permute
//   rows             [N_EP][E_local][N_ESP][C]            an expert's EP rank comes first
//     | EP-AlltoAll
//   arrived          [N_EP][E_local][N_ESP][C]            now by the EP rank it came from
//     | regroup
//   given            [E_local][N_EP][N_ESP][C]
//     | experts: partial sums, of the caller's hidden units
//     | ESP-AllReduce
//     | ESP-Split: the caller's own batch of the N_ESP
//     | regroup
//   returned         [N_EP][E_local][C]
//     | EP-AlltoAll
//   back             [N_EP][E_local][C]
//     | un-permute, weighted
//   output           [tokens]
//
// The ranks of an MP group bring the same batch, so every expert computes it N_MP times. Of these
// copies only the one of the MP group's first rank counts for the gradients of experts.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (N_ESP - 1) x in the AllGather,
// 2 (1 - 1 / N_ESP) y in the AllReduce, (1 - 1 / N_EP) y in the first EP-AlltoAll, and 1 / N_ESP of
// that in the second. (The paper's equation 1 charges y for the second too, as if the split came
// after it.)
//
// Backward:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | weighted to the choices' places; with what experts returned: the weights' gradients
//                    [N_EP][E_local][C]
//     | EP-AlltoAll
//                    [N_EP][E_local][C]
//     | ESP-AllGather: the ESP-Split mirrored
//                    [N_ESP][N_EP][E_local][C]
//     | regroup
//                    [E_local][N_EP][N_ESP][C]
//     | experts: their weights' gradients, and partial sums of their inputs'
//     | regroup back, ESP-ReduceScatter: adds the shards of the caller's own batch
//                    [N_EP][E_local][C]
//     | EP-AlltoAll
//                    [N_EP][E_local][C]
//     | un-permute, and the gate's part
//   inputGradient    [tokens]
//
// The strict mirror would bring rows back in an EP-AlltoAll N_ESP times as large, and add them as
// tokens. Bytes that leave a rank: (1 - 1 / N_ESP) y in the AllGather and in the ReduceScatter, and
// (1 - 1 / N_EP) y / N_ESP in each EP-AlltoAll.
#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {
namespace {

constexpr Dim kEp = Dim::ep, kEsp = Dim::esp, kExperts = Dim::localExperts, kPlaces = Dim::capacity,
              kWidth = Dim::embedding;

}  // namespace

Schedule baseline() {
  Builder s("baseline", Pass::forward);
  const int input = s.input();
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int gathered = s.exchange(Collective::allGather, GroupKind::esp, input, "gathered");
  const int routing = s.gate(gathered, weights).routing;
  const int rows = s.permute(gathered, routing, {kEp, kExperts, kEsp, kPlaces, kWidth}, "rows");
  const int arrived =
      s.exchange(Collective::allToAll, GroupKind::ep, rows, "arrived", "first EP-AlltoAll");
  const int given = s.regroup(arrived, {kExperts, kEp, kEsp, kPlaces, kWidth}, "given");
  const int made = s.experts(given, "made");
  s.last().copies = true;
  const int whole = s.exchange(Collective::allReduce, GroupKind::esp, made, "whole");
  const int mine = s.split(GroupKind::esp, whole, "mine");
  const int returned = s.regroup(mine, {kEp, kExperts, kPlaces, kWidth}, "returned");
  const int back =
      s.exchange(Collective::allToAll, GroupKind::ep, returned, "back", "second EP-AlltoAll");
  const int own = s.split(GroupKind::esp, routing, "own routing");
  // Each rank is back at its own batch.
  for (const int table : {back, own}) s.at(table).held.mp = State::replicated;
  s.output(s.combine(back, own, "output"));
  return s.build();
}

Schedule baselineBackward(const Schedule& forward) {
  Builder s(forward);
  s.schedule().pass = Pass::backward;
  const auto kept = [&](const char* name) {
    for (const Table& table : forward.tables)
      if (table.name == name) return s.kept(table);
    throw std::logic_error(std::string("the baseline has no table ") + name);
  };
  const Shape rowsShape = {kEp, kExperts, kPlaces, kWidth};
  const int gradient = s.input("gradient of output");
  const int routing = kept("own routing"), results = kept("back"), given = kept("given");
  const int weights = s.weights("gate", {Dim::gateWeights});
  const int ofWeights = s.table({.name = "gradient of weights",
                                 .shape = {Dim::tokens, Dim::choices},
                                 .held = {.mp = State::replicated}});
  const int ofBack = s.table({.name = "gradient of back", .shape = rowsShape});
  s.at(ofBack).held.mp = State::replicated;
  s.add({.kind = Kind::combine,
         .name = "un-permute, weighted",
         .reads = {gradient, results, routing},
         .writes = {ofBack, ofWeights},
         .backward = true});
  const int returned = s.exchange(Collective::allToAll, GroupKind::ep, ofBack,
                                  "gradient of returned", "first EP-AlltoAll");
  const int gathered =
      s.exchange(Collective::allGather, GroupKind::esp, returned, "gradient of all returned");
  const int sorted =
      s.regroup(gathered, {kEp, kExperts, kEsp, kPlaces, kWidth}, "the same by expert");
  const int ofMade = s.regroup(sorted, {kExperts, kEp, kEsp, kPlaces, kWidth}, "gradient of made");
  const int ofGiven =
      s.make({.kind = Kind::experts,
              .name = "experts",
              .reads = {ofMade, given},
              .backward = true,
              .copies = true},
             {.name = "gradient of given", .shape = s.at(ofMade).shape, .held = s.at(ofMade).held});
  s.at(ofGiven).held.esp = State::partial;
  const int arrived =
      s.regroup(ofGiven, {kEp, kExperts, kEsp, kPlaces, kWidth}, "gradient of arrived");
  const int byShard =
      s.regroup(arrived, {kEsp, kEp, kExperts, kPlaces, kWidth}, "the same by batch");
  const int mine =
      s.exchange(Collective::reduceScatter, GroupKind::esp, byShard, "gradient of own arrived");
  const int ofRows = s.exchange(Collective::allToAll, GroupKind::ep, mine, "gradient of rows",
                                "second EP-AlltoAll");
  const int ofInput = s.make(
      {.kind = Kind::permute, .name = "permute", .reads = {ofRows, routing}, .backward = true},
      {.name = "gradient of input",
       .shape = {Dim::tokens, kWidth},
       .held = {.mp = State::replicated},
       .sum = true});
  const int ofGate = s.table(
      {.name = "gradient of gate", .shape = {Dim::gateWeights}, .held = {.mp = State::replicated}});
  s.add({.kind = Kind::gate,
         .name = "gate",
         .reads = {ofWeights, routing, weights},
         .writes = {ofInput, ofGate},
         .backward = true});
  s.output(ofInput);
  return s.build();
}

}  // namespace moeccl::schedules

// Functions from schedule to schedule. A layer's pass is made in this order: the schedule, its
// backward, dropless, chunked, withResidual; or the schedule, routed, mirrored, chunked,
// withResidual. They throw NotOffered, with the reason for the user,
// where they do not apply.
#pragma once

#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

// The backward pass of a forward one. The order turns round, and each exchange becomes its
// transpose: dispatch and combine change places, so do MP-Split with dispatch and SAA, and an
// all-gather and a split; an all-reduce followed by a split, which is a reduce-scatter, becomes an
// all-gather. What is replicated in an ESP group has gradients that are partial sums, and the other
// way round; what is replicated in an MP group has replicated gradients, and counts once. Where
// parts or experts of an MP group's ranks have each a summand of such a gradient, an all-reduce
// adds them.
//
// Gates add a gradient of the auxiliary loss. So they are mirrored only once what they are given is
// whole.
Schedule mirrored(const Schedule& forward);

// Either pass with tokens cut in `chunks`, which know nothing of each other: each rank's part, of a
// schedule that splits tokens over the MP group; else, without capacity, each batch. Each chunk has
// a stream for its exchanges. What stands in one column goes on at once, here for S1 in three:
//
//   chunk 0   dispatch | experts  | combine  | un-permute, MP-AllGather
//   chunk 1   dispatch |          | experts  | combine  | un-permute, MP-AllGather
//   chunk 2   dispatch |          |          | experts  | combine  | un-permute, MP-AllGather
Schedule chunked(const Schedule& schedule, int chunks);

// Either pass with the residual branch (DeepSpeed-MoE 4.1): one more expert, which every token
// passes, and which all ranks of an MP group have. Each computes its part of the tokens, so each
// token is computed once.
//   - Where the schedule gathers parts (S1), or adds partial sums (PPMoE), over the MP group, the
//     branch's part is added to that before, and computed while dispatch is under way.
//   - Else (baseline, S2) an MP-AllGather of its own gathers the branch's parts while the schedule
//     does the rest, for (1 - 1 / N_MP) x more bytes from a rank.
// Backward an MP-AllReduce adds the gradients of the branch's weights, also beside the rest.
Schedule withResidual(const Schedule& schedule);

// Either pass without capacity: rows as many as there are instead of places. Ranks tell each other
// how many rows experts get, once, forward. Then dispatch is
//
//   own        [N_EP][E_local] runs           the caller's, by expert
//     | EP-AlltoAllv
//              [N_EP][E_local] runs           by the EP rank they came from
//     | ESP-AllGather: the shards of an expert all get its rows
//              [N_ESP][N_EP][E_local] runs    by the rank that they came from
//     | regroup
//   given      [E_local][N_ESP][N_EP] runs
//
// and combine the same backwards, where an ESP-ReduceScatter adds the shards in their order.
Schedule dropless(const Schedule& schedule);

// A forward pass with capacity as one without whose rows go by token routing: a token crosses to a
// node once, not once for each choice. Whatever lay between the permute and the experts becomes a
// token dispatch, and what lay between these and the weighted sums a token combine, which adds up
// the shards:
//
//   tokens      [tokens], or the rank's part of them
//     | token dispatch
//   given       [E_local][P] runs                 by the rank that they come from
//     | experts
//   made        [E_local][P] runs
//     | token combine
//   tokens      the same ones
//
// Nobody handles the tokens of other ranks' batches, so they are not gathered before the gate.
// Backward is the mirror.
Schedule routed(const Schedule& forward);

}  // namespace moeccl::schedules

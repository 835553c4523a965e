// Proves, without data and without a network, that the plans of all ranks together do what their
// collective promises. It knows no algorithm and no executor: what it accepts is right on every
// machine that keeps the two rules below.
//
// A plan runs on one of two machines.
//
//   By dependencies (UCX, loopback). An op starts once all ops that it depends on have completed,
//   and nothing else delays it. A send and its receive both complete once both have started. Lanes
//   and steps mean nothing.
//
//   By streams (NCCL). The ops of one (lane, step) start together: after the lane's previous step
//   has completed, and after the steps of other lanes that hold a dependency of one of them have. A
//   step has completed when all its ops have. This is the weakest machine that we run on: real ones
//   wait for less (a send of few bytes does not wait for its receive), and whoever waits for less
//   gets no less far, because every wait here is of the form "all of these first".
//
// What is checked, and why it suffices:
//
//   Shape     All plans have equally many lanes, cut blocks into equally many pieces, and say alike
//             whether anybody keeps blocks whose size he must be told. Every op names ranks,
//             blocks, lanes and earlier ops that exist; a receive depends on nothing; a dependency
//             inside a lane points to an earlier step.
//   Matching  The n-th send from a to b on a lane meets the n-th receive, none is left over, and
//             both carry equally many blocks. Their steps never decrease with n, so that matching
//             by the order of ops and matching by the order of steps are the same.
//   Order     Every block is written at most once, and whoever reads a block of the output or of
//             the scratch depends on its writer, directly or through other ops of the same rank. (A
//             detour through another rank could order them too; plans must not rely on it, and so
//             reads can be judged rank by rank.) So a reader sees the one value that the block ever
//             has, in every interleaving; nothing overwrites a block that a send still reads; and
//             the result cannot depend on timing. One interleaving then stands for all:
//   Data      In one order that the dependencies and the messages allow, what each block holds is
//             followed from the inputs to the outputs, sums as multisets, or as lists where the
//             promise is ordered. Every output block must end up with the promised payloads, each
//             exactly once. Every block that is moved must
//             come from and go to a block of its own size, whatever the caller's sizes are.
//   Deadlock  On either machine the waits form a graph. Since every wait is for all of its
//             predecessors, ops get stuck exactly if that graph has a cycle; the cycle is reported.
//             Streams may also find no room to run at once, so their machine is tried with one
//             stream for all lanes too, in the order of algorithms/launch_order.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/collective.h"
#include "algorithms/plan.h"

namespace moeccl {

struct VerifyLimits {
  int lanes = kMaxLanes;
  int messagesPerLane = kMaxMessagesPerLane;  // from one rank to another
  int violations = 16;                        // stop after so many
};

struct Violation {
  int rank;
  int op;            // -1: the plan as a whole
  std::string text;  // names the rank, the op and the block
};

// What the verifier needs to know of a contract.
struct Promise {
  int ranks;
  std::function<int(int rank)> inputBlocks;
  std::function<int(int rank)> outputBlocks;
  // Appends the payloads whose sum an output block must hold; nothing: the block is not to be
  // written.
  std::function<void(int rank, int outputBlock, std::vector<Payload>& payloads)> expected;
  // Contributions to one sum are equally large: payload (r, j) is as large as (s, j). Where nothing
  // is summed, no two payloads can be taken to be equally large.
  bool sums;
  // Blocks differ in size, and only their senders and receivers know how much.
  bool sized = false;
  // Sums must be taken at once, in the order of `expected`, never of partial sums.
  bool ordered = false;
  // A result may overwrite the input: only one op may read an input block.
  bool readOnce = false;
  // Inputs that hold the same have one name; empty: all differ.
  std::function<Payload(Payload)> identity = {};
  // All blocks are equally large, the scratch's too, whatever it says.
  bool uniform = false;
  // With `ordered`: which group of summands a payload is of. Sums are then made in two rounds: of
  // the payloads of one group, each exactly once, and of such sums. Every output that is promised
  // anything holds a sum. Empty: no groups.
  std::function<int(Payload)> group = {};
};

Promise promiseOf(const Contract& contract);

// Empty when the plans keep the promise. plans[r] is rank r's; throws std::invalid_argument when
// there is not one for each rank. Time and memory are linear in the number of ops, dependencies and
// blocks.
std::vector<Violation> verify(const Promise& promise, std::span<const Plan> plans,
                              const VerifyLimits& limits = {});
std::vector<Violation> verify(const Contract& contract, std::span<const Plan> plans,
                              const VerifyLimits& limits = {});

}  // namespace moeccl

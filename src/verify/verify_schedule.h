// Proves, without a network and without computing anything, that a schedule's passes are right on a
// grid with a routing. It knows no schedule by name and no executor.
//
// Order     Every phase names tables, streams and earlier phases that exist. A table is written by
//           one phase, a sum by several that wait for each other; whoever reads it waits for all of
//           them. The output may lie where the input did, so nobody reads that later. So the result
//           cannot depend on timing, and the list's order stands for all others. Phases of all
//           ranks are the same list, so the ranks of a group start the same exchanges in the same
//           order.
// Shapes    Each phase is given tables of the shapes that it is for, and makes tables of the shapes
//           that it says. What is said to be replicated in a group is the same on all its ranks.
//           Rows that are bound late are as many as the counts say. Routed rows are those of the
//           rank's own experts, by the rank that they come from.
// Data      All ranks' tables are followed in a prime field, where experts are products with random
//           numbers, one for each shard, and so are weights of choices. A gate must be given whole
//           tokens. The output of each token must be the sum over its kept choices of weight * (sum
//           over shards) * token: so every kept choice has reached every shard of its expert once,
//           and returned once. Backward the gradient of the input, of the gate, of the residual
//           branch and of each shard must be those of that function, the auxiliary loss counted
//           once; and <A x, y> = <x, A' y>, tokens of an MP group counted once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/grid.h"
#include "algorithms/schedules/schedule.h"

namespace moeccl {

// A layer on a grid, and where a gate sends the tokens of each batch.
struct RoutedLayer {
  Grid grid;
  int localExperts = 1;
  int tokens = 0;  // of a batch, without padding
  int choices = 1;
  int groups = 1;  // capacity groups of a batch
  int groupTokens = 0, groupSlots = 0;
  int chunks = 1;

  struct Choice {
    int expert;
    int place;  // of the expert's capacity() places of this batch; -1: dropped
  };
  std::vector<Choice> routing;  // [batch][token][choice]
  std::uint64_t seed = 1;       // of tokens, weights and experts
  // Whether gradients come by the gate too. Without, backward is linear, and the transpose of
  // forward.
  bool gateGradients = true;

  int experts() const { return localExperts * grid.ep; }
  int capacity() const { return groups * groupSlots; }
  int partTokens() const { return groups * groupTokens / grid.mp; }
  int slots() const { return capacity() / grid.mp; }
  const Choice& choice(int batch, int token, int choice) const {
    return routing[static_cast<std::size_t>((batch * tokens + token) * choices + choice)];
  }
};

// Empty where the pass keeps the rules of order, and its tables' shapes belong together; else what
// is wrong, the first things of it.
std::vector<std::string> verifyOrder(const schedules::Schedule& schedule);
// Whether the phase has as many tables as its kind, and of such shapes.
bool shapesFit(const schedules::Schedule& schedule, const schedules::Phase& phase);

// Empty where both passes are right. Throws std::invalid_argument where the schedule does not apply
// to the layer.
std::vector<std::string> verify(const schedules::Schedule& forward,
                                const schedules::Schedule& backward, const RoutedLayer& layer);
// The same without the rules of order, with the phases of each pass in the order given.
std::vector<std::string> follow(const schedules::Schedule& forward,
                                const std::vector<int>& forwardOrder,
                                const schedules::Schedule& backward,
                                const std::vector<int>& backwardOrder, const RoutedLayer& layer);

}  // namespace moeccl

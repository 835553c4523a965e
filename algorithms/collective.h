// What each collective promises, apart from how: how many blocks a rank puts in and gets out, and
// which payloads an output block must hold. The verifier proves plans against it; extents size
// blocks by it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "algorithms/grid.h"
#include "algorithms/plan.h"

namespace moeccl {

// P: ranks; E = ep * experts: all experts; input[b] at r: block b of rank r's input.
enum class Collective : std::uint8_t {
  allToAll,          // in [P], out [P]: output[s] at d = input[d] at s
  allToAllv,         // the same; blocks differ in size
  allGather,         // in [1], out [P]: output[s] = input[0] at s
  allGatherv,        // the same; blocks differ in size, which all ranks know
  reduceScatter,     // in [P], out [1]: output[0] at d = sum over s of input[d] at s
  reduceScatterv,    // the same; blocks differ in size, which all ranks know
  allReduce,         // in [1], out [1]: output[0] = sum over s of input[0] at s
  broadcast,         // in [1] at the root, out [1]: output[0] = input[0] at the root
  reduce,            // in [1], out [1] at the root: output[0] = sum over s of input[0] at s
  gather,            // in [1], out [P] at the root: output[s] = input[0] at s
  scatter,           // in [P] at the root, out [1]: output[0] at d = input[d] at the root
  tpAllToAll,        // in [groups], out [groups]: output[s] in group d = input[d] in group s
  dispatch,          // in [E], out [experts][P]
  combine,           // in [experts][P], out [E], summed over shards
  combineAllGather,  // in [experts][P], out [E][mp]
  splitDispatch,     // in [E][mp], out [experts][P]
};
inline constexpr int kCollectives = 16;

// As in override strings, benchmark labels and profile keys: "alltoall", "allgather".
std::string_view nameOf(Collective collective);
std::optional<Collective> collectiveNamed(std::string_view name);

// Whether the collective is one of a grid.
bool needsGrid(Collective collective);
// Plans of larger MP groups than so do the same to the same ranks, with blocks that lie elsewhere,
// where the EP and ESP groups are the same.
int mpThatMatters(Collective collective);
// Whether one rank, the root, has all of the input or gets all of the output.
bool hasRoot(Collective collective);

// The promise.
struct Contract {
  Collective collective;
  int ranks;
  Grid grid = {};   // of collectives that need one
  int experts = 1;  // per rank, of those that have experts
  int root = 0;     // of those that have one

  int inputBlocks(int rank) const;
  int outputBlocks(int rank) const;
  // The payloads that the output block must hold: one payload, or the sum of several, each once.
  std::vector<Payload> expected(int rank, int outputBlock) const;
  // Inputs that hold the same (those of an MP group) have one name.
  Payload identity(Payload payload) const;
  // Whether sums are to be taken at once, in the order of expected(), so that rounding is always
  // the same.
  bool ordered() const;
  // Whether the output may be the part of the input (or the reverse) that comes to lie there. Then
  // plans must read an input block once only: see algorithms/plan.h.
  bool reducesInPlace() const;
};

}  // namespace moeccl

// The groups of a grid as a layer sees them: communicators of the public API, and its place in
// each.
#pragma once

#include "moeccl/moeccl.h"

namespace moeccl {

struct Group {
  moecclComm_t comm;
  int ranks;
  int rank;  // the caller's
};

struct Groups {
  moecclGridShape_t shape;
  Group world, mp, ep, esp;

  // The world's rank that holds shard `espRank` of the experts of `epRank`.
  int worldRank(int epRank, int espRank) const {
    return shape.order == moecclOrderEspEp ? epRank * shape.nEsp + espRank
                                           : espRank * shape.nEp + epRank;
  }
};

// Throws Error.
Groups groupsOf(moecclGrid_t grid);

}  // namespace moeccl

// A grid and its groups as a layer sees them: communicators of the public API, and its place in
// each.
#pragma once

#include "algorithms/schedules/schedule.h"
#include "moeccl/moeccl.h"

namespace moeccl {

struct Group {
  moecclComm_t comm;
  int ranks;
  int rank;  // the caller's
};

struct Groups {
  moecclGrid_t grid;
  moecclGridShape_t shape;
  Group world, mp, ep, esp;

  const Group& of(GroupKind group) const {
    return group == GroupKind::mp    ? mp
           : group == GroupKind::ep  ? ep
           : group == GroupKind::esp ? esp
                                     : world;
  }
};

// Throws Error.
Groups groupsOf(moecclGrid_t grid);

}  // namespace moeccl

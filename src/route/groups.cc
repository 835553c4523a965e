// Asks a grid for its shape, and for the communicators of its groups.
#include "src/route/groups.h"

#include "src/base/boundary.h"

namespace moeccl {
namespace {

Group groupOf(moecclGrid_t grid, moecclGroup_t which) {
  Group group{};
  requireSuccess(moecclGridGetComm(grid, which, &group.comm));
  requireSuccess(moecclCommCount(group.comm, &group.ranks));
  requireSuccess(moecclCommUserRank(group.comm, &group.rank));
  return group;
}

}  // namespace

Groups groupsOf(moecclGrid_t grid) {
  Groups groups{};
  groups.grid = grid;
  requireSuccess(moecclGridGetShape(grid, &groups.shape));
  groups.world = groupOf(grid, moecclGroupWorld);
  groups.mp = groupOf(grid, moecclGroupMp);
  groups.ep = groupOf(grid, moecclGroupEp);
  groups.esp = groupOf(grid, moecclGroupEsp);
  return groups;
}

}  // namespace moeccl

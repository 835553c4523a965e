#include "src/schedule/groups.h"

#include "src/error.h"

namespace moeccl {
namespace {

void check(moecclResult_t result) {
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(nullptr));
}

Group groupOf(moecclGrid_t grid, moecclGroup_t which) {
  Group group{};
  check(moecclGridGetComm(grid, which, &group.comm));
  check(moecclCommCount(group.comm, &group.ranks));
  check(moecclCommUserRank(group.comm, &group.rank));
  return group;
}

}  // namespace

Groups groupsOf(moecclGrid_t grid) {
  Groups groups{};
  groups.grid = grid;
  check(moecclGridGetShape(grid, &groups.shape));
  groups.world = groupOf(grid, moecclGroupWorld);
  groups.mp = groupOf(grid, moecclGroupMp);
  groups.ep = groupOf(grid, moecclGroupEp);
  groups.esp = groupOf(grid, moecclGroupEsp);
  return groups;
}

}  // namespace moeccl

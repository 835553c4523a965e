// The assignment of ranks to model-parallel, expert-parallel and expert-sharding groups: who is
// where in the grid (Parm II-B). A value; it knows no node.
#pragma once

namespace moeccl {

struct Grid {
  int mp = 1;                  // ranks of a model-parallel group, always consecutive
  int ep = 1;                  // ranks of an expert-parallel group
  int esp = 1;                 // ranks of an expert-sharding group
  bool espConsecutive = true;  // else the ranks of an EP group are

  int ranks() const { return ep * esp; }
  // The rank that holds shard `shard` of the experts at position `position`.
  int rankOf(int position, int shard) const {
    return espConsecutive ? position * esp + shard : shard * ep + position;
  }
  int positionOf(int rank) const { return espConsecutive ? rank / esp : rank % ep; }
  int shardOf(int rank) const { return espConsecutive ? rank % esp : rank / ep; }

  int mpGroups() const { return ranks() / mp; }
  int mpGroupOf(int rank) const { return rank / mp; }
  int mpIndexOf(int rank) const { return rank % mp; }
  int mpRank(int group, int index) const { return group * mp + index; }

  bool operator==(const Grid&) const = default;
};

}  // namespace moeccl

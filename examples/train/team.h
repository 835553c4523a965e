// The ranks that train one model, and the groups over which they sum.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <string>

namespace train {

// Says what and why, and ends the process: after a failed collective nothing can go on. Peers are told
// by the launcher, or notice by themselves.
[[noreturn]] void fail(const std::string& what, moecclComm_t comm = nullptr);

// Fails unless `result` is success.
inline void require(moecclResult_t result, const char* what, moecclComm_t comm = nullptr) {
  if (result != moecclSuccess) fail(what, comm);
}

class Team {
 public:
  // Collective over `world`, which must outlive the team. Throws std::invalid_argument, on all ranks
  // alike, when the grid does not fit.
  Team(moecclComm_t world, const moecclGridShape_t& shape);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const moecclGridShape_t& shape() const { return shape_; }
  moecclGrid_t grid() const { return grid_; }

  int mpGroups() const { return ranks_ / shape_.nMp; }
  int mpGroup() const { return rank_ / shape_.nMp; }  // MP groups are consecutive ranks
  int mpRank() const { return rank_ % shape_.nMp; }
  int espRank() const { return espRank_; }

  // In place; the same bits on all ranks that sum.
  void sumOverWorld(float* values, std::size_t count) const { sum(values, count, world_); }
  void sumOverMpGroup(float* values, std::size_t count) const { sum(values, count, mp_); }
  // Over the ranks with the caller's place in their MP groups: one of each.
  void sumOverMpGroups(float* values, std::size_t count) const { sum(values, count, peers_); }
  void sumOverMpGroups(double* values, std::size_t count) const;

  // The bits of the one rank that has set any, on all ranks: the others bring zeros.
  void share(void* bytes, std::size_t size) const;

 private:
  static void sum(float* values, std::size_t count, moecclComm_t comm);

  moecclComm_t world_;
  moecclGridShape_t shape_;
  int rank_ = 0, ranks_ = 0, espRank_ = 0;
  moecclGrid_t grid_ = nullptr;
  moecclComm_t mp_ = nullptr;  // the grid's
  moecclComm_t peers_ = nullptr;
};

}  // namespace train

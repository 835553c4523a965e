// The ranks that train one model: stages of a pipeline, each with a grid, and the groups over which
// they sum.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <functional>
#include <string>

#include "real.h"

namespace train {

// Says what and why, and ends the process: after a failed collective nothing can go on. Peers are
// told by the launcher, or notice by themselves.
[[noreturn]] void fail(const std::string& what, moecclComm_t comm = nullptr);

// Fails unless `result` is success.
inline void require(moecclResult_t result, const char* what, moecclComm_t comm = nullptr) {
  if (result != moecclSuccess) fail(what, comm);
}

class Team {
 public:
  // `stages`, which divide the ranks, of consecutive ranks. Collective over `world`, which must
  // outlive the team. Throws std::invalid_argument, on all ranks alike, when the grid does not fit
  // a stage.
  Team(moecclComm_t world, int stages, const moecclGridShape_t& shape);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int stages() const { return stages_; }
  int stage() const { return rank_ / stageRanks(); }
  int stageRanks() const { return ranks_ / stages_; }
  int stageRank() const { return rank_ % stageRanks(); }
  const moecclGridShape_t& shape() const { return shape_; }
  moecclGrid_t grid() const { return grid_; }  // of the stage

  // MP groups of the stage, which are consecutive ranks.
  int mpGroups() const { return stageRanks() / shape_.nMp; }
  int mpGroup() const { return stageRank() / shape_.nMp; }
  int mpRank() const { return stageRank() % shape_.nMp; }
  int espRank() const { return espRank_; }

  // In place; the same bits on all ranks that sum.
  void sumOverStage(Real* values, std::size_t count) const { sum(values, count, stageComm_); }
  void sumOverMpGroup(Real* values, std::size_t count) const { sum(values, count, mp_); }
  // Over the ranks of the stage with the caller's place in their MP groups: one of each.
  void sumOverMpGroups(Real* values, std::size_t count) const { sum(values, count, peers_); }
  void sumOverWorld(double* values, std::size_t count) const;

  // Runs a step that may fail on some ranks or in some stages alone. Where it throws on one rank,
  // std::invalid_argument with that text is thrown on all; that of the first such rank. Collective
  // over the world.
  void agree(const std::function<void()>& step) const;

  // The bits of the one rank that has set any, on all ranks: the others bring zeros.
  void share(void* bytes, std::size_t size) const;

 private:
  static void sum(Real* values, std::size_t count, moecclComm_t comm);

  moecclComm_t world_;
  int stages_;
  moecclGridShape_t shape_;
  int rank_ = 0, ranks_ = 0, espRank_ = 0;
  moecclComm_t stageComm_ = nullptr;
  moecclGrid_t grid_ = nullptr;
  moecclComm_t mp_ = nullptr;  // the grid's
  moecclComm_t peers_ = nullptr;
};

}  // namespace train

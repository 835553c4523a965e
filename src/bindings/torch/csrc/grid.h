// Ranks that share experts, and which schedules suit them.
#pragma once

#include <ATen/ATen.h>
#include <moeccl/model.h>
#include <moeccl/moe.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "communicator.h"
#include "waits.h"

namespace moeccl::torch {

using Backend = c10::intrusive_ptr<c10d::Backend>;
using Tensors = std::vector<at::Tensor>;

// Some ranks of a process group, which must be moeccl's. Collective over them. Its calls are beside
// the group's own, so that asynchronous work of the group does not order them.
class RankSet {
 public:
  RankSet(const Backend& backend, const std::vector<int>& ranks);

  // [ranks][numbers]: what every rank said, of as many numbers each. what: for people, why ranks
  // wait for each other.
  std::vector<std::vector<int64_t>> gather(const std::vector<int64_t>& numbers,
                                           const std::string& what);
  // In place, tensor by tensor.
  void average(const Tensors& tensors);
  // Tells all of the ranks why this rank cannot go on: their calls fail with the text, and so do
  // those of grids on them. Local.
  void revoke(const std::string& text);
  void broadcast(const Tensors& tensors);

  moecclComm_t comm() const { return communicator_->comm(); }
  const std::string& where() const { return where_; }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  const std::string where_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Waits> waits_;  // null where not all ranks of the group are among them
};

class MoeGrid {
 public:
  // Collective over the ranks.
  MoeGrid(std::shared_ptr<RankSet> ranks, moecclGridShape_t shape);
  MoeGrid(const MoeGrid&) = delete;
  MoeGrid& operator=(const MoeGrid&) = delete;
  ~MoeGrid();

  moecclGrid_t grid() const { return grid_; }
  moecclComm_t comm() const { return ranks_->comm(); }
  const moecclGridShape_t& shape() const { return shape_; }
  const std::string& where() const { return ranks_->where(); }
  // After this nothing is waited for when it is freed. From any thread.
  void fail() { failed_ = true; }
  // Makes a call on the grid, which signals interrupt. Throws: wrong arguments are ValueErrors; all
  // else is DistBackendError, and has failed the grid.
  void call(const std::function<moecclResult_t()>& made);

 private:
  const std::shared_ptr<RankSet> ranks_;
  const moecclGridShape_t shape_;
  moecclGrid_t grid_ = nullptr;
  std::atomic<bool> failed_ = false;
};

// What a call writes as moecclExplain does.
template <typename Call>
std::string textOf(const Call& call) {
  size_t bytes = 0;
  call(nullptr, &bytes);
  std::string text(bytes, '\0');
  call(text.data(), &bytes);
  text.resize(text.find('\0'));
  return text;
}

// The datatype of tokens and rows. Throws ValueError where there is none.
moecclDataType_t datatypeOf(at::ScalarType type);
// The datatype of rows on their way. Throws ValueError where there is none.
moecclDataType_t wireOf(at::ScalarType type);

// Throws ValueError where an index is none of an expert's, nor -1, or a token names one twice,
// unless it may.
void checkIndices(const at::Tensor& indices, int64_t experts, bool repeated);
// Those that a layer may be asked for, from moecclScheduleAuto on.
std::vector<std::string> scheduleNames();

// An algorithm of a collective or a schedule of a layer, as predicted.
struct Choice {
  std::string name;
  double seconds, communication, bytesBetween;
  bool measured;
};

// Those of a cluster that need not be here, the fastest first.
struct Prediction {
  std::vector<Choice> choices;
  std::string text;
};
// query: about a layer or a collective; its cluster is made of the other arguments. ranksPerNode:
// of the nodes; profile: a path, or empty.
Prediction predict(moecclQuery_t query, moecclGridShape_t shape,
                   const std::vector<int>& ranksPerNode, const std::string& profile);

}  // namespace moeccl::torch

// The layer's halves on tensors: grids, layers and passes as Python has them.
#pragma once

#include <ATen/ATen.h>
#include <moeccl/moe.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "communicator.h"
#include "kept.h"
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

// Of tokens and rows. Throws ValueError where there is none.
moecclDataType_t datatypeOf(at::ScalarType type);

// A config as Python names it. capacityFactor 0: dropless.
struct LayerOptions {
  int64_t tokens, embedding, hidden, experts, topK;
  double capacityFactor;
  int64_t capacityGroups;
  at::ScalarType type;
  bool training, learn;
  std::string schedule;
};
moecclMoeConfig_t configOf(const LayerOptions& options);

// Throws ValueError where an index is none of an expert's, nor -1, or a token names one twice.
void checkIndices(const at::Tensor& indices, int64_t experts);
// Those that a layer may be asked for.
std::vector<std::string> scheduleNames();

// A schedule, as predicted for a layer.
struct Choice {
  std::string schedule;
  double seconds, communication, bytesBetween;
  bool measured;
};
class MoeLayer;

// One forward pass, until nothing needs it.
struct MoePass : KeptPass {
  MoePass(std::shared_ptr<MoeLayer> layer, int64_t tokens, int64_t note);
  ~MoePass() override;

  const std::shared_ptr<MoeLayer> layer;
  const int64_t tokens;  // the caller's, without what fills up
  moecclMoePass_t handle = nullptr;
  moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
};

class MoeLayer : public std::enable_shared_from_this<MoeLayer> {
 public:
  // Collective over the grid.
  MoeLayer(std::shared_ptr<MoeGrid> grid, const LayerOptions& options);
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;
  ~MoeLayer();

  // Of a pass that has begun. begins [local experts + 1]: where each expert's rows begin, and the
  // last ones end.
  struct Begun {
    at::Tensor ticket, rows, begins;
  };
  // tokens [n][M], experts and weights [n][k], where n is at most the layer's. note: of the ticket.
  Begun begin(const at::Tensor& tokens, const at::Tensor& experts, const at::Tensor& weights,
              int64_t note);
  // results: rows of the experts one behind the other, in one or several tensors.
  static at::Tensor end(const at::Tensor& ticket, const Tensors& results);
  // The gradients of the results, times `scale`.
  static at::Tensor endBackward(const at::Tensor& ticket, const at::Tensor& gradient, double scale);
  // The gradients of tokens and weights; those of rows count times `scale`.
  static std::pair<at::Tensor, at::Tensor> beginBackward(const at::Tensor& ticket,
                                                         const at::Tensor& gradient, double scale);

  std::string schedule() const;
  std::string explain() const;

 private:
  friend struct MoePass;

  std::string answer(const std::vector<Choice>& choices) const;
  // Makes a call that may wait, and throws its error.
  void call(const std::function<moecclResult_t()>& made);
  void closeEnded();
  at::Tensor filled(const at::Tensor& tensor, double with, at::ScalarType type) const;
  at::Tensor rowsAt(const MoePass& pass, const void* data) const;

  const std::shared_ptr<MoeGrid> grid_;
  const LayerOptions options_;
  moecclMoeLayer_t layer_ = nullptr;
  std::mutex mutex_;
  std::vector<moecclMoePass_t> ended_;  // to be destroyed by the next call
};

// The schedules of a layer on a cluster that need not be here, the fastest first.
struct Prediction {
  std::vector<Choice> choices;
  std::string text;
};
// ranksPerNode: of the nodes; profile: a path, or empty.
Prediction predict(const LayerOptions& options, moecclGridShape_t shape,
                   const std::vector<int>& ranksPerNode, const std::string& profile);

}  // namespace moeccl::torch

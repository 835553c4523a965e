// What a layer computes with: the memory, the datatype and the loops behind the phases of its
// schedules, which see nothing but pointers and counts. Memory, elements and streams as in
// src/route/mover.h.
//
// All computations of a pass have the same stream, and share a workspace; what may go on beside
// them are exchanges on a SideStream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/model/layer_shape.h"
#include "src/route/row_compute.h"
#include "src/route/weights.h"

namespace moeccl {

class Router;
using Routers = std::vector<std::unique_ptr<Router>>;

// Rows of some of the caller's experts, from `first` on: those of expert first + i are begins[i] to
// begins[i + 1].
struct ExpertRows {
  std::int64_t first;
  std::span<const std::int64_t> begins;

  std::int64_t experts() const { return std::ssize(begins) - 1; }
};

class Compute : public RowCompute {
 public:
  explicit Compute(const LayerShape& shape)
      : RowCompute(shape.datatype, shape.elementBytes), shape_(shape) {}

  const LayerShape& shape() const { return shape_; }

  // What gates sum up. sums [count] += the beginnings of so many rows, `distance` apart, in their
  // order.
  virtual void addSums(double* sums, std::int64_t count, const double* rows, std::int64_t rowCount,
                       std::int64_t distance, moecclStream_t stream) = 0;
  // gradient = that of scale * the auxiliary loss by the sums of a batch, both [sumsSize].
  virtual void lossBackward(const double* sums, double scale, double* gradient,
                            moecclStream_t stream) = 0;
  // The auxiliary loss itself; sums are the host's.
  virtual double auxiliaryLoss(const double* sums) const = 0;

  // How many experts expertForward and expertBackward had best be given at a time.
  virtual std::int64_t expertsAtOnce() const = 0;
  // Room for up to so many rows in one call of what follows; without this the first call makes it.
  virtual void reserveRows(std::int64_t) {}
  // tokens [rows][embedding] through the caller's shards of their experts. results may be tokens.
  virtual void expertForward(const LayerWeights& weights, const ExpertRows& rows,
                             const void* tokens, void* results, moecclStream_t stream) = 0;
  // The same backward, of the same tokens: rowGradients [rows][embedding] from gradients of the
  // results to those of the tokens. Adds to the gradients of the weights.
  virtual void expertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                              const ExpertRows& rows, const void* tokens, void* rowGradients,
                              moecclStream_t stream) = 0;

  // The same of the residual branch, all of it.
  virtual void residualForward(const MlpWeights& weights, std::int64_t count, const void* tokens,
                               void* results, moecclStream_t stream) = 0;
  virtual void residualBackward(const MlpWeights& weights, const MlpGradients& gradients,
                                std::int64_t count, const void* tokens, void* rowGradients,
                                moecclStream_t stream) = 0;

  // So many that take turns, for up to `tokens` tokens at a time; several are given as many each.
  // `keeps`: which of them keeps what its functions for backward need; -1: none. Must not outlive
  // this.
  virtual Routers routers(int count, std::int64_t tokens, int keeps) = 0;
  // Makes the lists of some that follow one another, and sets `counts`, of which each is a group.
  // begins: by router, where each expert's begin: [experts + 1] on the host, valid from when the
  // stream has come so far until the next route.
  virtual void list(std::span<const std::unique_ptr<Router>> routers, const ExpertCounts& counts,
                    std::span<const std::int64_t*> begins, moecclStream_t stream) = 0;

 private:
  const LayerShape shape_;
};

}  // namespace moeccl

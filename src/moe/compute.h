// What a layer computes with: the memory, the datatype and the loops behind the schedules, which order
// them and themselves see nothing but pointers and counts.
//
// Pointers without a type are to elements of the layer's datatype, counts are of elements, and all of it lies
// in the memory that allocate gives, as do the caller's tokens and weights. Every computation has a stream,
// as collectives have: see onStreams. All computations of a pass have the same one, and share a workspace; what
// may go on beside them are exchanges on a SideStream. Any call may throw Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/moe/layer_shape.h"
#include "src/moe/stream.h"
#include "src/moe/weights.h"

namespace moeccl {

class Router;

struct FreeMemory {
  void operator()(void* memory) const { free(memory); }
  void (*free)(void*) = nullptr;
};
using Memory = std::unique_ptr<void, FreeMemory>;

// Rows of some of the caller's experts, from `first` on: those of expert first + i are begins[i] to begins[i + 1].
struct ExpertRows {
  std::int64_t first;
  std::span<const std::int64_t> begins;

  std::int64_t experts() const { return std::ssize(begins) - 1; }
};

class Compute {
 public:
  explicit Compute(const LayerShape& shape) : shape_(shape) {}
  virtual ~Compute() = default;

  const LayerShape& shape() const { return shape_; }
  // For counts of collectives.
  moecclDataType_t datatype() const { return shape_.datatype; }

  // False: the caller's thread computes, and has done so when a call returns, whatever the stream; so it
  // must itself have waited for the collectives before. True: work is queued on the stream behind them.
  virtual bool onStreams() const = 0;

  // Uninitialised. Throws.
  virtual Memory allocate(std::size_t bytes) = 0;
  Memory elements(std::int64_t count) {
    return allocate(static_cast<std::size_t>(count * shape_.elementBytes));
  }
  void* at(void* elements, std::int64_t index) const {
    return static_cast<std::byte*>(elements) + index * shape_.elementBytes;
  }
  const void* at(const void* elements, std::int64_t index) const {
    return static_cast<const std::byte*>(elements) + index * shape_.elementBytes;
  }

  // For the few numbers that the host looks at: `bytes` bytes to and from its own memory, which may be
  // used again on return. toHost waits for what is queued on the stream.
  virtual void toHost(void* host, const void* from, std::size_t bytes, moecclStream_t stream) = 0;
  virtual void fromHost(void* to, const void* host, std::size_t bytes, moecclStream_t stream) = 0;
  // The host's memory that toHostLater takes, which does not wait: it is there once the stream has come so far.
  virtual Memory allocateForHost(std::size_t bytes) = 0;
  virtual void toHostLater(void* host, const void* from, std::size_t bytes,
                           moecclStream_t stream) = 0;

  // A place in the work of streams, nowhere yet.
  virtual std::unique_ptr<Mark> mark() { return std::make_unique<Mark>(); }
  // For exchanges of `comm` and its relatives, which must outlive it.
  virtual std::unique_ptr<SideStream> sideStream(moecclComm_t comm) = 0;
  // Waits for what is queued on the stream.
  virtual void await(moecclStream_t) {}
  // Throws Error (InvalidUsage) where a pass cannot be queued on the stream.
  virtual void requireUsable(moecclStream_t) {}

  virtual void clear(void* to, std::size_t bytes, moecclStream_t stream) = 0;
  void zero(void* to, std::int64_t count, moecclStream_t stream) {
    clear(to, static_cast<std::size_t>(count * shape_.elementBytes), stream);
  }
  virtual void copy(void* to, const void* from, std::int64_t count, moecclStream_t stream) = 0;
  // to += from.
  virtual void add(void* to, const void* from, std::int64_t count, moecclStream_t stream) = 0;
  // to [inner][outer][block] = from [outer][inner], whose blocks begin `distance` elements apart.
  virtual void transpose(void* to, const void* from, std::int64_t outer, std::int64_t inner,
                         std::int64_t block, std::int64_t distance, moecclStream_t stream) = 0;

  // What gates sum up. sums [count] += the beginnings of so many rows, `distance` apart, in their order.
  virtual void addSums(double* sums, std::int64_t count, const double* rows, std::int64_t rowCount,
                       std::int64_t distance, moecclStream_t stream) = 0;
  // gradient = that of scale * the auxiliary loss by the sums of a batch, both [sumsSize].
  virtual void lossBackward(const double* sums, double scale, double* gradient,
                            moecclStream_t stream) = 0;

  // How many experts expertForward and expertBackward had best be given at a time.
  virtual std::int64_t expertsAtOnce() const = 0;
  // Room for up to so many rows in one call of what follows; without this the first call makes it.
  virtual void reserveRows(std::int64_t) {}
  // tokens [rows][embedding] through the caller's shards of their experts. results may be tokens.
  virtual void expertForward(const LayerWeights& weights, const ExpertRows& rows,
                             const void* tokens, void* results, moecclStream_t stream) = 0;
  // The same backward, of the same tokens: rowGradients [rows][embedding] from gradients of the results to
  // those of the tokens. Adds to the gradients of the weights.
  virtual void expertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                              const ExpertRows& rows, const void* tokens, void* rowGradients,
                              moecclStream_t stream) = 0;

  // The same of the residual branch, all of it.
  virtual void residualForward(const MlpWeights& weights, std::int64_t count, const void* tokens,
                               void* results, moecclStream_t stream) = 0;
  virtual void residualBackward(const MlpWeights& weights, const MlpGradients& gradients,
                                std::int64_t count, const void* tokens, void* rowGradients,
                                moecclStream_t stream) = 0;

  // For up to `tokens` tokens at a time. `keeps`: what its functions for backward need. Must not outlive this.
  virtual std::unique_ptr<Router> router(std::int64_t tokens, bool keeps) = 0;

 private:
  const LayerShape shape_;
};

}  // namespace moeccl

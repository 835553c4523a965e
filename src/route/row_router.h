// Moves the tokens of a batch, or of one of its parts, to the places of their experts and back.
// Memory, elements and streams as in mover.h.
#pragma once

#include <cstdint>

#include "kernels/permute.h"
#include "moeccl/route.h"
#include "src/base/error.h"

namespace moeccl {

// What rows depend on beside who chose what.
struct RowShape {
  std::int64_t embedding;
  std::int32_t experts, choices;
  std::int64_t groupSlots;  // places per expert and capacity group
};

inline moecclRouting_t routingOf(std::int64_t tokens, const std::int32_t* experts,
                                 const void* weights) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  routing.tokens = tokens;
  routing.experts = experts;
  routing.weights = weights;
  return routing;
}

class RowRouter {
 public:
  virtual ~RowRouter() = default;

  // As scatterTokens and combineTokens; places without a token are zeroed.
  virtual void scatter(const void* input, std::int64_t expertStride, void* rows,
                       moecclStream_t stream) = 0;
  virtual void combine(const void* rows, std::int64_t expertStride, void* output,
                       moecclStream_t stream) = 0;

  // The same backward. combineBackward sets weightGradients [tokens][choices], scatterBackward the
  // gradient of the input.
  virtual void combineBackward(const void* rows, const void* outputGradient,
                               std::int64_t expertStride, void* rowGradients, void* weightGradients,
                               moecclStream_t stream) = 0;
  virtual void scatterBackward(const void* rowGradients, std::int64_t expertStride,
                               void* inputGradient, moecclStream_t stream) = 0;

  // For token routing, which float64 does not have: the choices in the memory of its buffers, -1
  // for those that have no place, and their weights.
  virtual moecclRouting_t chosen() {
    throw Error(moecclInternalError, "token routing where there is none");
  }
  virtual void setWeightGradients(const float*, void*, moecclStream_t) {}

  // Without places between: the choices that have one, expert by expert, in a list. A part of it:
  struct Listed {
    std::int64_t begin, count;
  };
  // As gatherListed, addListed and their gradients.
  virtual void gather(Listed listed, const void* input, void* rows, moecclStream_t stream) = 0;
  virtual void add(Listed listed, const void* rows, void* output, moecclStream_t stream) = 0;
  virtual void addBackward(Listed listed, const void* rows, const void* outputGradient,
                           void* rowGradients, void* weightGradients, moecclStream_t stream) = 0;
  virtual void gatherBackward(Listed listed, const void* rowGradients, void* inputGradient,
                              moecclStream_t stream) = 0;
};

// Who chose what, and where its rows are: [tokens][choices] each.
struct RowTables {
  std::int64_t tokens = 0, groups = 0;
  const std::int32_t* experts = nullptr;
  const void* weights = nullptr;         // float64 where the elements are, else float32
  const std::int64_t* slots = nullptr;   // nullptr: nothing is dropped, and there are no places
  const std::int64_t* used = nullptr;    // [groups][experts], with slots
  const std::int64_t* listed = nullptr;  // as listByExpert makes it; nullptr: nobody needs it
};

class GivenRouter : public RowRouter {
 public:
  // All calls that follow are about these choices of the host's, which must live as long.
  virtual void set(const RowTables& tables, moecclStream_t stream) = 0;
};

}  // namespace moeccl

// Gates the tokens of a batch, or of one of its parts, and moves them to the places of their
// experts and back. Memory, elements and streams as in compute.h.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/gates/random.h"
#include "kernels/permute.h"
#include "src/base/error.h"
#include "src/route/balance.h"
#include "src/route/weights.h"
#include "src/route/work.h"

namespace moeccl {

class Router {
 public:
  virtual ~Router() = default;

  // Tokens of a batch that follow one another.
  struct Tokens {
    std::int64_t first, count;  // without padding
    std::int64_t groups;        // capacity groups that they are
    int part;                   // in whose sums choices that have a place are counted
  };
  // Routes them, input [count][embedding], and adds to the sums of their parts; null: nobody looks
  // at these. draw: the batch's; without, nothing is random.
  virtual void route(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                     const Tokens& tokens, const void* input, BatchSums* sums,
                     moecclStream_t stream) = 0;

  // Gives places, in so many capacity groups, to `count` tokens whose choices somebody else has
  // made. experts and weights [count][choices]; -1: not made. Adds to sums. Nothing can be gated
  // backward.
  virtual void routeGiven(const std::int32_t* experts, const void* weights, std::int64_t count,
                          std::int64_t groups, double* sums, moecclStream_t stream) = 0;

  // What follows is of the last route.

  // As scatterTokens and combineTokens; places without a token are zeroed.
  virtual void scatter(const void* input, std::int64_t expertStride, void* rows,
                       moecclStream_t stream) = 0;
  virtual void combine(const void* rows, std::int64_t expertStride, void* output,
                       moecclStream_t stream) = 0;

  // The same backward, for a router that keeps. combineBackward sets weightGradients
  // [tokens][choices]; scatterBackward sets the gradient of the input, to which gateBackward adds
  // what comes by the gate. sumGradients: as of BatchStats::lossBackward. gradients are added to.
  virtual void combineBackward(const void* rows, const void* outputGradient,
                               std::int64_t expertStride, void* rowGradients, void* weightGradients,
                               moecclStream_t stream) = 0;
  virtual void scatterBackward(const void* rowGradients, std::int64_t expertStride,
                               void* inputGradient, moecclStream_t stream) = 0;
  virtual void gateBackward(const GateWeights& gate, const void* weightGradients,
                            const double* sumGradients, const GateGradients& gradients,
                            void* inputGradient, moecclStream_t stream) = 0;

  // For token routing, which float64 does not have: see schedules::Work.
  virtual schedules::Chosen chosen() {
    throw Error(moecclInternalError, "token routing where there is none");
  }
  virtual void setWeightGradients(const float*, void*, moecclStream_t) {}

  // Without places between: the choices that have one, expert by expert, once Compute::list has
  // made the list. A part of it, as begins count:
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

}  // namespace moeccl

// Gates the tokens of a batch, or of one of its parts. Memory, elements and streams as in
// compute.h.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/gates/random.h"
#include "src/route/balance.h"
#include "src/route/row_router.h"
#include "src/route/weights.h"

namespace moeccl {

class Router : public RowRouter {
 public:
  // Tokens of a batch that follow one another.
  struct Tokens {
    std::int64_t first, count;  // without padding
    std::int64_t groups;        // capacity groups that they are
    int part;                   // in whose sums choices that have a place are counted
  };
  // Routes them, input [count][embedding], and adds to the sums of their parts; null: nobody looks
  // at these. draw: the batch's; without, nothing is random. The rest is of the last route; what is
  // listed is there once Compute::list has made the list.
  virtual void route(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                     const Tokens& tokens, const void* input, BatchSums* sums,
                     moecclStream_t stream) = 0;

  // For a router that keeps. weightGradients [tokens][choices] are of combineBackward; adds what
  // comes by the gate to the gradient of the input. sumGradients: as of BatchStats::lossBackward.
  // gradients are added to.
  virtual void gateBackward(const GateWeights& gate, const void* weightGradients,
                            const double* sumGradients, const GateGradients& gradients,
                            void* inputGradient, moecclStream_t stream) = 0;
};

}  // namespace moeccl

// The residual branch (DeepSpeed-MoE 4.1, Residual-MoE): one more expert, which every token passes. All ranks
// of an MP group have all of it; each computes its part of the group's tokens. Memory, elements and streams as
// in compute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "src/moe/parts.h"

namespace moeccl {

// What it is made with must outlive it.
class Residual {
 public:
  // gathers: parts come together by an MP-AllGather of their own, beside whatever the schedule does; without,
  // that has one, or a sum, that they join.
  Residual(const Groups& groups, Compute& compute, Phases& phases, bool gathers);

  // The caller's part of input [tokens][embedding] through the branch; input is not read afterwards. What it
  // starts finish waits for.
  moecclResult_t forward(const MlpWeights& weights, const void* input, moecclStream_t stream);
  // The same backward, of the last forward: of the gradient of the output to that of the input, and the
  // weights'.
  moecclResult_t backward(const MlpWeights& weights, const void* outputGradient,
                          moecclStream_t stream);

  // Adds what came of the caller's part, or with `gathers` of all parts, to batch [tokens][embedding].
  moecclResult_t addTo(void* batch, moecclStream_t stream);
  // The same of `count` tokens of the caller's part from its token `first` on, to rows [count][embedding];
  // not with `gathers`.
  void addRows(std::int64_t first, std::int64_t count, void* rows, moecclStream_t stream);
  // Backward: adds the weights' gradients, over the tokens of the MP group.
  moecclResult_t addGradients(const MlpGradients& sums, moecclStream_t stream);
  // After a failure: what is under way comes before what `stream` is asked for next.
  void abandon(moecclStream_t stream);

 private:
  std::int64_t firstToken() const { return shape_.firstToken(groups_.mp.rank, 0); }
  std::int64_t tokens() const;  // of the caller's part, without padding
  void* part() const { return parts_ ? parts_->own(nullptr) : part_.get(); }
  // What of the pass's `stream` exchanges go on, behind what it has computed.
  moecclStream_t aside(moecclStream_t stream);
  // Before the use of what forward and backward have started.
  moecclResult_t join(const char* phase, moecclStream_t stream);

  const Groups& groups_;
  Compute& compute_;
  const LayerShape shape_;
  Phases& phases_;
  std::optional<PartGather> parts_;  // with `gathers`
  Memory part_;                      // [part tokens][embedding], without
  Memory input_;                     // the same, for backward
  std::optional<PartGradients> gradients_;
  std::unique_ptr<SideStream>
      side_;  // of exchanges, if there are any; it ends before what they are of
};

}  // namespace moeccl

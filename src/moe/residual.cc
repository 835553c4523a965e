#include "src/moe/residual.h"

#include <algorithm>

namespace moeccl {
namespace {

constexpr const char* kGather = "MP-AllGather of the residual branch";
constexpr const char* kReduce = "MP-AllReduce of the residual branch's gradient";

}  // namespace

Residual::Residual(const Groups& groups, Compute& compute, Phases& phases, bool gathers)
    : groups_(groups), compute_(compute), shape_(compute.shape()), phases_(phases) {
  const std::int64_t part = elementCount({shape_.partTokens, shape_.embedding});
  if (gathers)
    parts_.emplace(groups_, compute, phases, kGather, 0, false);
  else
    part_ = compute.elements(part);
  compute.reserveRows(shape_.partTokens);
  if (groups.mp.ranks > 1) side_ = compute.sideStream(groups.mp.comm);
  if (!shape_.training) return;
  input_ = compute.elements(part);
  const std::int64_t matrix = elementCount({shape_.embedding, shape_.residual});
  gradients_.emplace(
      groups_, compute, phases, kReduce,
      std::initializer_list<std::int64_t>{matrix, shape_.residual, matrix, shape_.embedding});
}

std::int64_t Residual::tokens() const {
  return std::min(shape_.tokens - firstToken(), shape_.partTokens);
}

moecclResult_t Residual::forward(const MlpWeights& weights, const void* input,
                                 moecclStream_t stream) {
  const void* const tokensOfPart = compute_.at(input, firstToken() * shape_.embedding);
  if (input_) compute_.copy(input_.get(), tokensOfPart, tokens() * shape_.embedding, stream);
  compute_.residualForward(weights, tokens(), tokensOfPart, part(), stream);
  return parts_ ? parts_->gather(nullptr, aside(stream)) : moecclSuccess;
}

moecclResult_t Residual::backward(const MlpWeights& weights, const void* outputGradient,
                                  moecclStream_t stream) {
  compute_.copy(part(), compute_.at(outputGradient, firstToken() * shape_.embedding),
                tokens() * shape_.embedding, stream);
  gradients_->clear(stream);
  compute_.residualBackward(
      weights, {gradients_->of(0), gradients_->of(1), gradients_->of(2), gradients_->of(3)},
      tokens(), input_.get(), part(), stream);
  if (parts_) {
    const moecclResult_t result = parts_->gather(nullptr, aside(stream));
    if (result != moecclSuccess) return result;
  }
  return gradients_->reduce(aside(stream));
}

moecclStream_t Residual::aside(moecclStream_t stream) {
  if (!side_) return stream;
  side_->follow(stream);
  return side_->get();
}

moecclResult_t Residual::join(const char* phase, moecclStream_t stream) {
  return side_ ? phases_.noted(phase, side_->join(stream)) : moecclSuccess;
}

moecclResult_t Residual::addTo(void* batch, moecclStream_t stream) {
  if (!parts_) {
    addRows(0, tokens(), compute_.at(batch, firstToken() * shape_.embedding), stream);
    return moecclSuccess;
  }
  const moecclResult_t result = join(kGather, stream);
  if (result == moecclSuccess) parts_->add(batch, stream);
  return result;
}

void Residual::addRows(std::int64_t first, std::int64_t count, void* rows, moecclStream_t stream) {
  compute_.add(rows, compute_.at(part(), first * shape_.embedding), count * shape_.embedding,
               stream);
}

moecclResult_t Residual::addGradients(const MlpGradients& sums, moecclStream_t stream) {
  const moecclResult_t result = join(kReduce, stream);
  if (result != moecclSuccess) return result;
  gradients_->addTo(sums.w1, 0, stream);
  gradients_->addTo(sums.b1, 1, stream);
  gradients_->addTo(sums.w2, 2, stream);
  gradients_->addTo(sums.b2, 3, stream);
  return moecclSuccess;
}

void Residual::abandon(moecclStream_t stream) {
  if (side_) side_->join(stream);
}

}  // namespace moeccl

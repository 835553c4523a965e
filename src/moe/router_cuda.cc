// Gates tokens on a GPU: the logits of all tokens first, then choices part by part, then places.
// Routers that are made together share the lists of their choices.
#include "src/moe/router_cuda.h"

#include <algorithm>
#include <utility>

#include "kernels/narrow.h"
#include "src/model/schedule_list.h"

namespace moeccl {
namespace {

template <typename T>
Memory room(Compute& compute, std::initializer_list<std::int64_t> sizes) {
  return compute.allocate(static_cast<std::size_t>(elementCount(sizes)) * sizeof(T));
}

gates::Parameters<void> parametersOf(const GateWeights& gate) {
  return {gate.gate, gate.noise, gate.bias};
}

}  // namespace

void GateMemory::reserve(std::size_t bytes) {
  if (bytes > bytes_) compute_.grow(memory_, bytes_, bytes);
}

CudaLists::CudaLists(Compute& compute, GateMemory& memory, int count, std::int64_t tokens)
    : routers(count) {
  const LayerShape& shape = compute.shape();
  chosen = room<std::int32_t>(compute, {count, tokens, shape.choices});
  // Other layers have places instead of lists.
  if (!shape.dropless && !needsOf(shape.schedule).expertsInMp) return;
  memory.reserve(cuda::listByExpertWorkspace(count * tokens * shape.choices, count, shape.experts));
  begins = room<std::int64_t>(compute, {count, shape.experts + 1});
  listed = room<std::int64_t>(compute, {count, tokens, shape.choices});
  positions = room<std::int64_t>(compute, {count, tokens, shape.choices});
  hostBegins = compute.allocateForHost(
      static_cast<std::size_t>(elementCount({count, shape.experts + 1})) * sizeof(std::int64_t));
}

CudaRouter::CudaRouter(Compute& compute, GateMemory& memory, std::shared_ptr<CudaLists> lists,
                       int index, std::int64_t tokens, bool keeps)
    : GpuRouter(compute, {compute.shape().embedding, compute.shape().experts,
                          compute.shape().choices, compute.shape().groupSlots}),
      compute_(compute),
      memory_(memory),
      shape_(compute.shape()),
      lists_(std::move(lists)),
      index_(index),
      keeps_(keeps),
      gate_(shape_.gate, shape_.datatype, tokens, shape_.groups) {
  memory.reserve(gate_.workspaceBytes());
  logits_ = room<double>(compute, {tokens, gates::logitsPerToken(shape_.gate)});
  weights_ = room<float>(compute, {tokens, shape_.choices});
  if (!shape_.dropless) {
    slots_ = room<std::int64_t>(compute, {tokens, shape_.choices});
    if (shape_.gate.renormalize) factors_ = room<double>(compute, {tokens});
    used_ = room<std::int64_t>(compute, {shape_.groups, shape_.experts});
  }
  if (!keeps) return;
  input_ = compute.elements(elementCount({tokens, shape_.embedding}));
}

void CudaRouter::route(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                       const Tokens& tokens, const void* input, BatchSums* sums,
                       moecclStream_t stream) {
  begin(tokens.first, tokens.count, draw);
  computeLogits(gate, input, tokens.count, stream);
  if (sums == nullptr) {
    choose(gate, input, tokens.count, nullptr, stream);
    return place(tokens.groups, nullptr, stream);
  }
  while (tokens_ < tokens.count) {
    const std::int64_t at = tokens.first + tokens_, part = at / shape_.partTokens;
    choose(gate, compute_.at(input, tokens_ * shape_.embedding),
           std::min(tokens.count - tokens_, (part + 1) * shape_.partTokens - at),
           sums->row(static_cast<int>(part)), stream);
  }
  // Which part a kept choice is counted in does not matter: the counts are exact.
  place(tokens.groups, sums->row(tokens.part), stream);
}

void CudaRouter::begin(std::int64_t firstToken, std::int64_t count,
                       const std::optional<gates::Draw>& draw) {
  count_ = count;
  tokens_ = 0;
  firstToken_ = firstToken;
  draw_ = draw;
}

void CudaRouter::computeLogits(const GateWeights& gate, const void* input, std::int64_t count,
                               moecclStream_t stream) {
  gate_.computeLogits(parametersOf(gate), {input, count, firstToken_, draw_}, in<double>(logits_),
                      stream);
  if (keeps_ && count > 0) compute_.copy(input_.get(), input, count * shape_.embedding, stream);
}

void CudaRouter::choose(const GateWeights& gate, const void* input, std::int64_t count,
                        double* sums, moecclStream_t stream) {
  gate_.choose(
      parametersOf(gate), {input, count, firstToken_ + tokens_, draw_},
      {in<double>(logits_) + tokens_ * gates::logitsPerToken(shape_.gate),
       chosenExperts() + tokens_ * shape_.choices, in<float>(weights_) + tokens_ * shape_.choices},
      sums, memory_.workspace(), stream);
  tokens_ += count;
}

void CudaRouter::place(std::int64_t groups, double* sums, moecclStream_t stream) {
  tables_ = {tokens_,
             groups,
             chosenExperts(),
             in<float>(weights_),
             in<std::int64_t>(slots_),
             in<std::int64_t>(used_),
             in<std::int64_t>(lists_->listed)};
  positions_ =
      lists_->positions == nullptr ? nullptr : in<std::int64_t>(lists_->positions) + firstChoice();
  if (shape_.dropless) {
    kept_ = sums == nullptr ? nullptr : sums + shape_.experts;
    return;
  }
  gate_.place(tokens_, groups, chosenExperts(), in<float>(weights_), in<std::int64_t>(used_),
              in<std::int64_t>(slots_), in<double>(factors_), sums, memory_.workspace(), stream);
}

void CudaRouter::gateBackward(const GateWeights& gate, const void* weightGradients,
                              const double* sumGradients, const GateGradients& gradients,
                              void* inputGradient, moecclStream_t stream) {
  gate_.backward(parametersOf(gate), {input_.get(), tokens_, firstToken_, draw_},
                 in<double>(logits_), chosenExperts(),
                 {in<std::int64_t>(slots_), in<float>(weights_), in<double>(factors_)},
                 weightGradients, sumGradients, {gradients.gate, gradients.noise, inputGradient},
                 memory_.blas(), memory_.workspace(), stream);
}

const std::int64_t* CudaRouter::list(const ExpertCounts& counts, moecclStream_t stream) {
  CudaLists& lists = *lists_;
  Choices<float> all = choices();
  all.tokens *= lists.routers;
  cuda::listByExpert(all, lists.routers, shape_.experts, in<std::int64_t>(lists.begins),
                     in<std::int64_t>(lists.listed), in<std::int64_t>(lists.positions), counts,
                     memory_.workspace(), stream);
  compute_.toHostLater(
      lists.hostBegins.get(), lists.begins.get(),
      static_cast<std::size_t>(lists.routers * (shape_.experts + 1)) * sizeof(std::int64_t),
      stream);
  return in<std::int64_t>(lists.hostBegins);
}

}  // namespace moeccl

// Turns choices of experts into choices of positions for a throughput pass, and sends the experts
// and weights of each token behind its row.
#include "src/route/token_rows_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace moeccl {
namespace {

// One choice of a token, as it goes with the token's row.
struct Choice {
  std::int32_t expert;
  float weight;
};

RouteShape byPosition(RouteShape shape) {
  shape.experts.count = shape.experts.grid.ep;
  shape.weights = moecclRouteWeightsNone;
  return shape;
}

}  // namespace

TokenRowsPass::TokenRowsPass(Communicator& communicator, const RouteShape& shape,
                             const RoutePrices& prices)
    : ThroughputPass(communicator, byPosition(shape), prices),
      byExpert_(shape),
      expertLoads_(shape.experts.count) {}

void TokenRowsPass::begin(Communicator& communicator, const Routing& routing, void* stream) {
  const auto choices = static_cast<std::size_t>(shape_.choices);
  const std::size_t all = routing.wrong ? 0 : static_cast<std::size_t>(routing.tokens) * choices;
  positions_.assign(all, -1);
  for (std::size_t i = 0; i < all; ++i) {
    if (routing.experts[i] < 0) continue;
    const std::int32_t position = byExpert_.experts.positionOf(routing.experts[i]);
    const auto token = positions_.begin() + static_cast<std::ptrdiff_t>(i - i % choices);
    const auto here = positions_.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(token, here, position) == here) *here = position;
  }
  ThroughputPass::begin(communicator, {routing.tokens, positions_.data(), nullptr, routing.wrong},
                        stream);
  const std::vector<std::int32_t>& admitted = this->admitted();
  droppedChoices_ = 0;
  for (std::size_t i = 0; i < all && shape_.maxRows > 0; ++i) {
    if (routing.experts[i] < 0) continue;
    const auto token = admitted.begin() + static_cast<std::ptrdiff_t>(i - i % choices);
    const std::int32_t position = byExpert_.experts.positionOf(routing.experts[i]);
    droppedChoices_ += std::find(token, token + shape_.choices, position) == token + shape_.choices;
  }
  expertLoads_.add(static_cast<std::int64_t>(all), routing.experts);
  expertLoads_.addRows(roomForRows());
  tellChoices(communicator, routing);
}

void TokenRowsPass::tellChoices(Communicator& communicator, const Routing& routing) {
  std::vector<Choice> told(positions_.size());
  for (std::size_t i = 0; i < told.size(); ++i)
    told[i] = {routing.experts[i], routing.weights == nullptr ? 1 : routing.floats()[i]};
  const auto come =
      static_cast<std::size_t>(roomForRows()) * static_cast<std::size_t>(shape_.choices);
  std::vector<Choice> arrived(come);
  moveRows(communicator, told.data(), arrived.data(),
           static_cast<std::size_t>(shape_.choices) * sizeof(Choice), nullptr, nullptr);
  const std::int32_t first = byExpert_.firstExpert(rank_), count = byExpert_.localExperts(rank_);
  auto here = std::make_shared<RowChoices>();
  here->experts.resize(come);
  here->weights.resize(come);
  for (std::size_t i = 0; i < come; ++i) {
    const std::int32_t expert = arrived[i].expert - first;
    const bool own = expert >= 0 && expert < count;
    here->experts[i] = own ? expert : -1;
    here->weights[i] = own ? arrived[i].weight : 0;
  }
  choices_ = std::move(here);
}

const float* TokenRowsPass::rowWeights() const {
  return byExpert_.weights == moecclRouteWeightsRows ? choices_->weights.data() : nullptr;
}

void TokenRowsPass::returnWeights(Communicator& communicator, const float* rowWeightGradients,
                                  float* weightGradients, void* stream) {
  struct Kept {
    std::shared_ptr<const RowChoices> choices;
    std::vector<float> own;
  };
  const auto kept =
      std::make_shared<Kept>(Kept{choices_, std::vector<float>(choices_->experts.size())});
  // Whatever a row has for choices of other ranks does not count.
  addUp(
      communicator, kept->own.data(), weightGradients, shape_.choices,
      [kept, rowWeightGradients] {
        for (std::size_t i = 0; i < kept->own.size(); ++i)
          kept->own[i] = kept->choices->experts[i] >= 0 ? rowWeightGradients[i] : 0;
      },
      stream);
}

}  // namespace moeccl

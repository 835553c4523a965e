// The token routing of a pass, by the public API.
#include <algorithm>

#include "src/schedule/executor.h"

namespace moeccl::schedules {

void PassRun::route(const Phase& phase) {
  if (route_ == nullptr) {
    moecclTokenRoute_t made = nullptr;
    check(phase.name, moecclTokenRouteCopy(executor_.route(), &made));
    route_.reset(made);
  }
  const Chosen chosen = work_.chosen(table(phase.reads[0]));
  routedTokens_ = chosen.tokens;
  check(phase.name, moecclTokenRouteSet(route_.get(), chosen.tokens, chosen.experts, chosen.weights,
                                        mover_.onStreams() ? stream_ : nullptr));
  check(phase.name, moecclTokenRouteGetRankCounts(route_.get(), hostCounts_.data()));
  const int counts = phase.writes[0];
  counts_.setGiven({hostCounts_.data(), static_cast<std::size_t>(elements(counts))},
                   table(counts).shape);
}

void PassRun::moveRouted(const Phase& phase) {
  if (half_->written[static_cast<std::size_t>(phase.writes[0])] != 0)
    throw Error(moecclInternalError, phase.name + ": no layer's schedule adds what was routed");
  check(phase.name,
        moveRouted(phase, phase.stream == 0 ? stream_ : executor_.side(phase.stream).get()));
  if (phase.kind != Kind::combine || !phase.backward) return;
  weighted_ = &phase;
  if (phase.stream == 0) takeWeightGradients();
}

void PassRun::takeWeightGradients() {
  const int gradients = weighted_->writes[1];
  work_.setWeightGradients(table(gradients), static_cast<const float*>(weightGradients_.get()),
                           at(gradients), stream_);
  weighted_ = nullptr;
}

moecclResult_t PassRun::moveRouted(const Phase& phase, moecclStream_t stream) {
  const moecclTokenRoute_t route = route_.get();
  const void* const from = at(phase.reads[0]);
  void* const to = at(phase.writes[0]);
  if (phase.kind == Kind::permute)
    return phase.backward ? moecclTokenRouteDispatchBackward(route, from, to, stream)
                          : moecclTokenRouteDispatch(route, from, to, stream);
  if (!phase.backward) return moecclTokenRouteCombine(route, from, to, stream);
  const auto bytes =
      static_cast<std::size_t>(routedTokens_ * sizes_.at(Dim::choices)) * sizeof(float);
  if (bytes > weightGradientsRoom_) mover_.grow(weightGradients_, weightGradientsRoom_, bytes);
  return moecclTokenRouteCombineBackward(route, from, at(phase.reads[1]), to,
                                         static_cast<float*>(weightGradients_.get()), stream);
}

}  // namespace moeccl::schedules

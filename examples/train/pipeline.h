// The passes of a step through the stages of a pipeline, one forward and one backward in turn
// (1F1B):
//
//   stage 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3        three stages, four passes
//   stage 1      F0 F1 .  B0 F2 B1 F3 B2 .  B3
//   stage 2         F0 B0 F1 B1 F2 B2 F3 B3
//
// A stage has begun at most as many passes as there are stages from it on, whatever their number.
// It sends what it has computed and receives what it needs next in one exchange with that
// neighbour, so that neighbours never wait for each other's sends.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model.h"

namespace train {

class Pipeline {
 public:
  // `count` numbers pass between stages. Collective over `world`, which must outlive the pipeline.
  Pipeline(moecclComm_t world, const Team& team, std::size_t count);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // How many models a stage needs for so many passes: each keeps what one pass has computed on its
  // way back.
  std::int64_t models(std::int64_t passes) const;

  // Forward and backward of passes 0, 1, ... by the models in turn, which call `forward` and
  // `backward`. Collective over `world`.
  using Call = std::function<void(Model& model, std::int64_t pass)>;
  void run(const std::vector<std::unique_ptr<Model>>& models, std::int64_t passes,
           const Call& forward, const Call& backward);

 private:
  // How many passes go forward before the first comes back.
  std::int64_t ahead(std::int64_t passes) const;
  // With the rank in the caller's place in a neighbouring stage; nullptr: nothing that way. Does
  // nothing where there is no such stage.
  void exchange(moecclComm_t link, const Real* sent, Real* received) const;

  const Team& team_;
  std::size_t count_;
  moecclComm_t previous_ = nullptr, next_ = nullptr;
  std::vector<Real> received_;  // from the previous stage, while a model is still being sent from
};

}  // namespace train

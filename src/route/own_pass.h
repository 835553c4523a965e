// Passes around the caller's own gate and experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/route/executor.h"
#include "src/route/layer_work.h"

namespace moeccl {

// [tokens][choices] each, as of moecclMoeRouting_t.
struct OwnRouting {
  const std::int32_t* experts = nullptr;
  const void* weights = nullptr;
};

// Why such passes are not offered; null: they are, but in chunks.
const char* whyNoOwnPasses(const LayerShape& shape);
// Throws Error (InvalidArgument) unless all experts exist; for routing in the host's memory.
void requireExperts(const LayerShape& shape, const OwnRouting& routing);

// Phases of all experts together where they go one by one.
schedules::Schedule atOnce(schedules::Schedule schedule);

// A layer's schedules, with all experts at once. What it is made with must outlive it.
struct OwnSchedules {
  OwnSchedules(const schedules::Schedule& layerForward, const schedules::Schedule* layerBackward,
               const schedules::Sizes& layerSizes, const Groups& groups, Compute& compute);

  schedules::Schedule forward, backward;
  schedules::Sizes sizes;
  schedules::Executor executor;
};

// What the caller has decided takes the place of the gate.
class OwnWork final : public LayerWork {
 public:
  OwnWork(const Groups& groups, Compute& compute, const schedules::Schedule& forward);

  void setRouting(const OwnRouting& routing) { routing_ = routing; }
  // Where the backward pass puts the gradients of the routing's weights.
  void setWeightGradients(void* gradients) { weightGradients_ = gradients; }

  void gateBackward(const schedules::Step& step) override;
  void addGradients(schedules::Dim, const void*, moecclStream_t) override {}

 private:
  void route(const schedules::Step& step) override;
  // all [tokens][choices] = the parts of the ranks of the MP group; `own` begins with the rank's
  // part.
  void gather(const void* own, void* all, moecclDataType_t type, moecclStream_t stream);

  const LayerShape shape_;
  OwnRouting routing_;
  void* weightGradients_ = nullptr;
  std::vector<std::size_t> sendCounts_, sendBegins_, recvCounts_, recvBegins_;
  Memory experts_, weights_;        // of the MP group
  Memory allExperts_, allWeights_;  // of the batches of the ESP group
};

struct OwnPass {
  enum class Stage : std::uint8_t { free, begun, ended, endedBackward, failed };

  OwnPass(OwnSchedules& schedules, Compute& compute)
      : work(schedules.executor.groups(), compute, schedules.forward),
        run(schedules.executor, work) {}

  static const char* nextOf(Stage stage);
  static Stage stageOf(const std::unique_ptr<OwnPass>& pass) { return pass->stage; }

  Stage stage = Stage::free;
  std::size_t alternative = 0;  // of the layer's schedules
  OwnWork work;
  schedules::PassRun run;
};

}  // namespace moeccl

// A layer with weights and tokens, to be timed.
#pragma once

#include <moeccl/model.h>

#include <array>
#include <cstdint>
#include <memory>
#include <random>

#include "perf/common/memory.h"

namespace moeccl::perf {

// For training. All ranks have the same tokens and gate.
class MeasuredLayer {
 public:
  // `memory`: the grid's, which must outlive this. Collective over the grid, as forward and
  // backward are. Throws std::runtime_error.
  MeasuredLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, Memory& memory);

  void forward();
  // The backward pass of the last forward pass, as often as one likes; the constructor made one.
  void backward();

 private:
  struct Destroy {
    void operator()(moecclMoeLayer_t layer) const { moecclMoeLayerDestroy(layer); }
  };
  // Numbers of these, and as many zeros.
  void fill(Buffer& numbers, Buffer& gradient, std::int64_t count);

  Memory& memory_;
  std::minstd_rand random_;
  Buffer gate_, first_, second_, input_;
  Buffer gateGradient_, firstGradient_, secondGradient_, output_;
  std::unique_ptr<moecclMoeLayer, Destroy> layer_;
};

// What is timed of a layer; samples of one pass are fitted by themselves.
struct TimedPass {
  moecclPass_t pass;
  void (MeasuredLayer::*run)();
};
inline constexpr std::array kTimedPasses = {
    TimedPass{moecclPassForward, &MeasuredLayer::forward},
    TimedPass{moecclPassBackward, &MeasuredLayer::backward}};

}  // namespace moeccl::perf

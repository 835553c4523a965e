// A layer that runs: under one schedule, on a communicator with one setting of algorithms.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "perf/job.h"
#include "perf/layers/settings.h"
#include "perf/layers/space.h"

namespace moeccl::perf::layers {

// A communicator with an algorithm setting, and a grid on it.
struct GridOfSetting {
  Comm comm;
  Grid grid;  // destroyed first
};

// Those of all layers: each is made once, since a communicator can be split 32767 times.
class Grids {
 public:
  explicit Grids(const Job& job) : job_(job) {}
  // Collective. Throws std::runtime_error.
  const GridOfSetting& get(const moecclGridShape_t& shape, const std::string& algorithms);

 private:
  const Job& job_;
  std::map<std::pair<std::vector<int>, std::string>, GridOfSetting> made_;
};

// The caller's part of the weights, and the tokens of its MP group. Values are the same in every run.
class Data {
 public:
  Data(const Layer& layer, const moecclMoeShapes_t& shapes, int rank, std::uint64_t seed);
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;

  const moecclMoeWeights_t& weights() const { return weights_; }
  const float* input() const { return input_.data(); }

 private:
  std::vector<float> gate_, w1_, b1_, w2_, b2_, input_;
  moecclMoeWeights_t weights_ = MOECCL_MOE_WEIGHTS_INITIALIZER;  // points into the vectors
};

class Contender {
 public:
  // Collective. Where the layer and its grid do not offer the schedule, offered() is false and reason()
  // the library's. Throws std::runtime_error.
  Contender(const Layer& layer, const Setting& setting, Grids& grids);

  const Setting& setting() const { return setting_; }
  bool offered() const { return handle_ != nullptr; }
  const std::string& reason() const { return reason_; }
  moecclMoeShapes_t shapes() const;

  // Keeps the pointers.
  void setWeights(const moecclMoeWeights_t& weights);
  // `count` passes one after the other. Collective.
  void forward(const float* input, float* output, int count);
  // Collective, on the contender's own communicator.
  void barrier();

 private:
  struct Destroy {
    void operator()(moecclMoeLayer_t layer) const { moecclMoeLayerDestroy(layer); }
  };
  Setting setting_;
  moecclComm_t comm_ = nullptr;
  std::unique_ptr<moecclMoeLayer, Destroy> handle_;
  std::string reason_;
};

}  // namespace moeccl::perf::layers

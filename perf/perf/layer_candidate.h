// A layer that runs: under one schedule, on a communicator with one setting of algorithms.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "perf/common/job.h"
#include "perf/perf/layer_data.h"
#include "perf/perf/layer_settings.h"
#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {

// A communicator with an algorithm setting, and a grid on it.
struct GridOfSetting {
  Comm comm;
  Grid grid;  // destroyed first
};

// The grids that layers run on: each is made once.
class Grids {
 public:
  explicit Grids(const Job& job) : job_(job) {}
  // Collective. Throws std::runtime_error.
  const GridOfSetting& get(const moecclGridShape_t& shape, const std::string& algorithms);

 private:
  const Job& job_;
  std::map<std::pair<std::vector<int>, std::string>, GridOfSetting> made_;
};

class LayerCandidate {
 public:
  // Collective. Where the layer and its grid do not offer the schedule, offered() is false and
  // reason() the library's. Throws std::runtime_error.
  // `learns`: as of the config.
  LayerCandidate(const Layer& layer, const Setting& setting, moecclPass_t pass, Grids& grids,
                 bool learns = false);

  const Setting& setting() const { return setting_; }
  bool offered() const { return handle_ != nullptr; }
  const std::string& reason() const { return reason_; }
  moecclMoeShapes_t shapes() const;
  // The schedule that is followed, and the plans of its exchanges: candidates of a layer with equal
  // work do the same.
  struct Work {
    struct Exchange {
      moecclPass_t pass;
      moecclGroup_t group;
      std::size_t bytes;
      int calls;
      std::uint64_t digest;
      auto operator<=>(const Exchange&) const = default;
    };
    moecclSchedule_t schedule;
    std::vector<Exchange> exchanges;
    auto operator<=>(const Work&) const = default;
  };
  Work work() const;

  // From now on passes are over `data`, which must outlive them.
  void setData(Data& data);
  // `count` forward passes, each followed by a backward one if the pass is both. Collective.
  void run(int count);
  // Collective, on the candidate's own communicator.
  void barrier();

 private:
  struct Destroy {
    void operator()(moecclMoeLayer_t layer) const { moecclMoeLayerDestroy(layer); }
  };
  Setting setting_;
  moecclMoeConfig_t config_;
  moecclGrid_t grid_ = nullptr;
  bool gathers_ = false;  // MP groups have several ranks
  bool backward_;
  Data* data_ = nullptr;
  moecclComm_t comm_ = nullptr;
  std::unique_ptr<moecclMoeLayer, Destroy> handle_;
  std::string reason_;
};

}  // namespace moeccl::perf::layers

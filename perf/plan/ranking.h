// What is predicted for every placement and schedule of a layer, best first.
#pragma once

#include <moeccl/model.h>

#include <memory>
#include <string>
#include <vector>

#include "perf/common/choices.h"
#include "perf/plan/options.h"

namespace moeccl::perf::plan {

struct Predicted {
  moecclGridShape_t shape;
  Prediction choice;
  double tokensPerSecond;  // of the whole cluster
};

class Predictor {
 public:
  // Throws std::runtime_error where the profile cannot be read.
  explicit Predictor(const PredictOptions& options);

  // Most tokens per second first: with one N_MP that is the least time. Grids that the layer's
  // config does not allow are left out. Throws std::runtime_error where none remains.
  std::vector<Predicted> rank(const std::vector<moecclGridShape_t>& placements) const;
  // moecclExplain's text.
  std::string explain(const moecclGridShape_t& shape) const;

 private:
  struct Destroy {
    void operator()(moecclProfile_t profile) const { moecclProfileDestroy(profile); }
  };
  moecclCluster_t clusterOf(const moecclGridShape_t& shape) const;
  moecclQuery_t queryOf(const moecclCluster_t& cluster) const;

  const PredictOptions& options_;
  std::unique_ptr<moecclProfile, Destroy> profile_;
};

}  // namespace moeccl::perf::plan

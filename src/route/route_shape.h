// What a route is made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/routes/route.h"
#include "moeccl/moe.h"
#include "moeccl/route.h"

namespace moeccl {

// All of it the same on all ranks.
struct RouteShape {
  routes::Experts experts;
  int choices;  // of a token
  std::int64_t hidden, maxTokens;
  moecclDataType_t tokenDatatype, datatype;
  moecclRouteWeights_t weights;
  const routes::RouteAlgorithm* algorithm;  // nullptr: by price
  bool latency;
  std::vector<std::int64_t> buckets;  // ascending; latency mode on GPUs

  // Fields of routes with a schedule, as in the config.
  bool scheduled = false;
  moecclSchedule_t schedule = moecclScheduleAuto;  // auto: by price
  double capacityFactor = 0;
  std::int64_t capacityGroups = 0, minCapacity = 0, expertElements = 0;
  bool sharedTokens = false, training = false, learn = false;

  // Fields of routes without a schedule, as in the config.
  bool rowsByToken = false;
  std::int64_t maxRows = 0, alignment = 1;
  moecclDataType_t wire = static_cast<moecclDataType_t>(0);

  bool hasWeights() const { return weights != moecclRouteWeightsNone; }
  bool weighs() const { return weights == moecclRouteWeightsCombine; }
  // The rank's own experts.
  int firstExpert(int rank) const { return experts.begin(experts.grid.positionOf(rank)); }
  int localExperts(int rank) const {
    return experts.begin(experts.grid.positionOf(rank) + 1) - firstExpert(rank);
  }
  std::size_t rowBytes() const;  // of what a dispatch takes and brings
  std::size_t combineRowBytes() const;
  bool quantises() const { return wire != 0; }
  std::size_t sentRowBytes() const;  // of a dispatch, on its way
  std::size_t weightBytes() const { return datatype == moecclFloat64 ? 8 : 4; }
};

}  // namespace moeccl

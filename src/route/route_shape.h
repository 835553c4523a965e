// What a token route is made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/routes/route.h"
#include "moeccl/moeccl.h"

namespace moeccl {

// All of it the same on all ranks.
struct RouteShape {
  routes::Experts experts;
  int choices;  // of a token
  std::int64_t hidden, maxTokens;
  moecclDataType_t datatype, combineDatatype;
  bool weighted;                            // by the library
  const routes::RouteAlgorithm* algorithm;  // nullptr: by price
  bool latency;
  std::vector<std::int64_t> buckets;  // ascending; latency mode on GPUs
  std::size_t rowBytes() const;       // of a dispatch
  std::size_t combineRowBytes() const;
};

}  // namespace moeccl

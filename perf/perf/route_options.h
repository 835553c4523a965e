// What `moeccl-perf route` is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/perf/options.h"

namespace moeccl::perf {

struct RouteOptions {
  std::vector<std::string> algorithms;  // "auto": the library's choice
  std::string routing = "even";         // even | zipf | hot | text
  std::string textFile;
  int experts = 64, choices = 8;
  std::int64_t tokens = 512, hidden = 2048;
  // The type of the rows that come to experts, and that of the rows that return.
  DataType dataType = {"bfloat16", moecclBfloat16, 2}, combined = dataType;
  int esp = 1;
  int drawn = 0;              // passes whose numbers of tokens are drawn; 0: all have `tokens`
  double capacityFactor = 0;  // of these
  int iterations = 3, warmupIterations = 1, repetitions = 5;
  unsigned seed = 1;
  moecclMemory_t memory = moecclMemoryHost;
  std::string jsonFile;  // empty: none
  std::vector<std::string> commandLine;

  bool isQuantised() const { return dataType.bytes == 1; }
};

// The type as which rows travel by an algorithm's name, such as "node:fp8_e4m3"; 0 where that says
// nothing.
inline moecclDataType_t wireOf(const std::string& algorithm) {
  if (algorithm.ends_with(":fp8_e4m3")) return moecclFloat8e4m3;
  if (algorithm.ends_with(":fp8_e5m2")) return moecclFloat8e5m2;
  return static_cast<moecclDataType_t>(0);
}

Parsed<RouteOptions> parseRouteOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf

// What moeccl-plan is asked to do.
#pragma once

#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf::plan {

inline constexpr int kMostRanks = 1 << 12;

struct Options {
  std::string collective;         // as in MOECCL_ALGO
  std::string algorithm;          // "bruck:radix=4"; empty: the one that is listed first
  std::vector<int> ranksPerNode;  // either this
  std::vector<int> nodeOfRank;    // or this
  std::vector<std::string> grid;  // MP,EP,ESP and perhaps "ep-first"; empty: none
  int experts = 1;                // of each rank
  int rank = -1;                  // below 0: all
  bool list = false;              // of collectives and algorithms
  bool verify = false;
  bool quiet = false;            // no ops
  std::string dotFile, svgFile;  // empty: none
  std::string schedule;          // "S1": both of its passes instead of a collective's plans
  bool dropless = false, residual = false, tokenRouting = false;
  int chunks = 1;
};

Parsed<Options> parseOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf::plan

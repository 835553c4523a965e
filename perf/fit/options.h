// What moeccl-fit is asked to do.
#pragma once

#include <moeccl/moeccl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf {

inline constexpr std::uint64_t kLargestByDefault = 64u << 20;

struct FitOptions {
  std::vector<moecclGridShape_t> grids;  // empty: gridsFor()
  bool bothOrders = false;
  std::vector<std::string> collectives;  // these alone, and no layers; empty: all of it
  std::uint64_t minBytes = 256;
  std::uint64_t maxBytes = 0;  // 0: 64 MiB, and no call above a second
  double budgetSeconds = 300;
  double steadyPercent = 3;
  int maxRepetitions = 15;
  int alternatives = 16;
  moecclMemory_t memory = moecclMemoryHost;
  bool force = false;  // writes a profile whatever was busy or impossible
  std::string outputFile = "moeccl-profile.json";
  std::string refitFile;  // empty: measure
  std::string mapFile;    // empty: none
};

Parsed<FitOptions> parseFitOptions(int argc, const char* const* argv);

// The grids to measure on `ranks` ranks: those asked for, else all with N_MP and N_ESP of 1, 2, 4
// and 8 that `ranks` allows. Throws std::runtime_error for one that `ranks` does not make.
std::vector<moecclGridShape_t> gridsFor(const FitOptions& options, int ranks);

}  // namespace moeccl::perf

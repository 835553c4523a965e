// What moeccl-layers is asked to do.
#pragma once

#include <moeccl/model.h>

#include <cstdint>
#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf::layers {

struct Options {
  int layers = 18;
  std::uint64_t seed = 1;
  int scale = 0;  // 0: by layerSeconds
  double layerSeconds = 5;
  std::int64_t topK = 0;  // 0: drawn
  bool dropless = false;
  std::vector<std::int64_t> layer;        // N_MP, N_ESP, B L, M, H, E; empty: layers are drawn
  moecclPass_t pass = moecclPassForward;  // or both
  int repetitions = 5;
  int closeRepetitions = 15;
  double turnMs = 20;
  double memoryGib = 4;  // of all ranks of a node
  std::string jsonFile;  // empty: none
  std::string note;
  std::vector<std::string> commandLine;
};

Parsed<Options> parseOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf::layers

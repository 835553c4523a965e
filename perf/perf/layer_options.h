// What `moeccl-perf layers` is asked to do.
#pragma once

#include <moeccl/model.h>

#include <cstdint>
#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf::layers {

struct Options {
  std::vector<std::string> schedules = {"all"};  // or names, auto among them
  int layers = 18;
  std::uint64_t seed = 1;
  int scale = 0;  // 0: by layerSeconds
  double layerSeconds = 5;
  std::int64_t topK = 0;  // 0: drawn
  bool dropless = false;
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;  // without experts: layers are drawn
  moecclGridShape_t grid = {0, 0, 0, moecclOrderEspEp};     // of that layer; zeros: EP alone
  moecclPass_t pass = moecclPassForward;                    // or both
  int learn = 0;  // steps in which auto learns before it is timed; 0: it does not
  int repetitions = 5;
  int closeRepetitions = 15;
  double turnMs = 20;
  double memoryGib = 4;  // of all ranks of a node
  std::string jsonFile;  // empty: none
  std::string note;
  std::vector<std::string> commandLine;

  bool drawsLayers() const { return layer.experts == 0; }
};

Parsed<Options> parseOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf::layers

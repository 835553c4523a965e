// What the quickstart is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quickstart {

struct Options {
  // One layer, and the tokens of one MP group.
  std::int64_t tokens = 512, embedding = 128, hidden = 256, experts = 0, topK = 2;
  double capacityFactor = 1.25;
  // The grid. 0: pairs for MP and ESP where the number of ranks is even, and EP follows.
  int nMp = 0, nEp = 0, nEsp = 0;

  std::vector<std::string> texts;  // files of English
  // Of the baseline's all-to-all, and of S1's dispatch and combine.
  std::vector<std::string> allToAll = {"linear", "hierarchical"}, dispatch = {"flat", "dedup"};
  std::int64_t iterations = 5, warmUp = 2;
  double tolerance = 1e-5;  // of the largest output
  std::uint64_t seed = 1;

  std::string uplinkCounter;  // file: bytes that the caller's node has sent so far; "": none
  double uplinkRate = 0;      // bits per second, each way; 0: unknown or unshaped
  bool checkOnly = false;
  bool help = false;
};

// Throws std::invalid_argument, which names the option, its value and what would be right.
Options parseOptions(int count, char** arguments);

std::string usage();

}  // namespace quickstart

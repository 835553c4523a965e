// What moeccl-perf is asked to do.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf {

struct MeasuredCollective;

struct DataType {
  const char* name;  // nccl-tests'
  moecclDataType_t value;
  std::size_t bytes;
};

// How the times of the ranks become one; values are nccl-tests'.
enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };

struct Options {
  const MeasuredCollective* collective = nullptr;
  std::uint64_t minBytes = 32u << 20;
  std::uint64_t maxBytes = 32u << 20;
  std::uint64_t stepBytes = 1u << 20;
  std::uint64_t stepFactor = 1;  // 1: stepBytes counts
  bool sizesOfBlocks = false;    // sizes are those of one block, not of the whole buffer
  moecclGridShape_t grid = {0, 0, 0, moecclOrderEspEp};  // zeros: by the nodes
  int experts = 1;                                       // per rank
  int iterations = 20;
  int warmupIterations = 5;
  int checkIterations = 1;
  int repetitions = 5;
  Average average = Average::kMean;
  std::vector<DataType> dataTypes;
  std::vector<std::string> algorithms;      // "auto": the library's choice
  std::vector<std::string> mpiAlgorithms;   // empty: no comparison; "default": MPI's choice
  std::vector<std::string> mpiEnvironment;  // NAME=VALUE, for MPI alone
  moecclMemory_t memory = moecclMemoryHost;
  std::string jsonFile;  // empty: none
  std::vector<std::string> commandLine;

  // The sizes to measure, in bytes and ascending, as minBytes, maxBytes and the steps say.
  std::vector<std::uint64_t> sizes() const;
};

Parsed<Options> parseOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf

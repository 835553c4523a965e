// The tables on standard output and the progress on standard error. Only rank 0 makes one.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/output_file.h"
#include "perf/layers/options.h"
#include "perf/layers/outcome.h"

namespace moeccl::perf::layers {

struct Skipped {
  Layer layer;
  double gib;  // what it would take on the fullest node
};

// A whole run.
struct Run {
  const Options& options;
  int ranks;
  std::vector<int> ranksPerNode;
  int scale;
  int version;  // the library's
  std::vector<Outcome> outcomes;
  std::vector<Skipped> skipped;
};

class Report {
 public:
  // Opens the JSON file, so that a wrong name is found before anything is measured. Throws
  // std::runtime_error.
  Report(const Options& options, const Job& job);

  // Before the first layer.
  void begin(int scale);
  void add(Outcome outcome);
  void skip(const Layer& layer, double bytes);
  // Prints the summaries and writes the JSON file. Throws std::runtime_error.
  void finish();

 private:
  void showProgress() const;

  Run run_;
  OutputFile file_;
  std::chrono::steady_clock::time_point start_;
};

// Tables of what the layers say together.
void printSummaries(const Run& run);
// Everything, as perf/layers/README.md describes it.
std::string toJson(const Run& run);

}  // namespace moeccl::perf::layers

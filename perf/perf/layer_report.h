// The tables on standard output and the progress on standard error. Only rank 0 makes one.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/json_report.h"
#include "perf/perf/layer_options.h"
#include "perf/perf/layer_outcome.h"

namespace moeccl::perf::layers {

struct Skipped {
  Layer layer;
  double gib;  // what it would take on the fullest node
};

// A whole run.
struct Run {
  const Options& options;
  int ranks;
  int scale;
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
  JsonReport json_;
  std::chrono::steady_clock::time_point start_;
};

// Tables of what the layers say together.
void printSummaries(const Run& run);
// What the JSON file has of a run, as perf/perf/LAYERS.md describes it.
nlohmann::ordered_json membersOf(const Run& run);

}  // namespace moeccl::perf::layers

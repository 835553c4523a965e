// The table on standard output and the JSON file. Only rank 0 makes one.
#pragma once

#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/json_report.h"
#include "perf/perf/measure.h"

namespace moeccl::perf {

class Report {
 public:
  // Opens the JSON file, so that a wrong name is found before anything is measured, and prints the
  // head. Throws std::runtime_error.
  Report(const Options& options, const Job& job, const World& world);

  // All results of one size.
  void add(const std::vector<Result>& results);
  // Prints the foot and writes the JSON file. Throws std::runtime_error.
  void finish(std::int64_t wrong);

 private:
  void printHead() const;

  const Options& options_;
  JsonReport json_;
  std::vector<double> busBandwidths_;
};

}  // namespace moeccl::perf

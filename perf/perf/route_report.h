// The table of `moeccl-perf route` and its JSON file. Only rank 0 makes one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/json_report.h"
#include "perf/perf/route_options.h"

namespace moeccl::perf {

enum RoutePart { kBegin, kDispatch, kCombine, kRouteParts };

// The results of one algorithm; times are in seconds.
struct RouteResult {
  std::string name;                                    // as given to --algorithms
  std::string algorithm;                               // that ran
  std::array<std::vector<double>, kRouteParts> times;  // of each call, by turn
  std::vector<double> steps;                           // of the three calls, one after another
  std::int64_t wrong = 0;                              // elements
};

// Rows that leave a node for each token: a row per node, per rank or per choice.
struct RowsPerToken {
  double node, rank, choice;
};

class RouteReport {
 public:
  // Opens the JSON file, so that a wrong name is found before anything is measured, and prints the
  // head. Throws std::runtime_error.
  RouteReport(const RouteOptions& options, const Job& job, const RowsPerToken& rows);

  // Prints the table and writes the JSON file. Throws std::runtime_error.
  void finish(const std::vector<RouteResult>& results);

 private:
  const RouteOptions& options_;
  JsonReport json_;
};

}  // namespace moeccl::perf

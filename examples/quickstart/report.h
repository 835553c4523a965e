// What the quickstart prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure.h"
#include "options.h"
#include "traffic.h"

namespace quickstart {

struct Report {
  const Options& options;
  const Topology& topology;
  const Problem& problem;
  const std::vector<Row>& rows;
  std::int64_t words = 0, differentWords = 0;  // of the text that the ranks have used
  std::vector<std::int64_t> assigned;          // choices per expert, of all MP groups
  std::int64_t dropped = 0;                    // choices of all MP groups
};

void printTable(const Report& report);
// What the table says, computed from it.
void printReading(const Report& report);

}  // namespace quickstart

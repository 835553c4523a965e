// A ranking for people, and for programs.
#pragma once

#include <string>
#include <vector>

#include "perf/predict/ranking.h"

namespace moeccl::perf {

void printRanking(const PredictOptions& options, const std::vector<Predicted>& all);
// Throws std::runtime_error where the file cannot be written.
void writeRanking(const PredictOptions& options, const std::vector<Predicted>& all);

}  // namespace moeccl::perf

// A ranking for people, and for programs.
#pragma once

#include <string>
#include <vector>

#include "perf/predict/ranking.h"

namespace moeccl::perf {

void printRanking(const PredictOptions& options, const std::vector<Predicted>& all);
// As perf/predict/README.md describes it.
std::string jsonOf(const PredictOptions& options, const std::vector<Predicted>& all);

}  // namespace moeccl::perf

// In place of predict.cc and ranking.cc in a build without libmoeccl-moe, which predicts schedules.
#include <cstdio>
#include <cstdlib>

#include "perf/plan/predict.h"

namespace moeccl::perf::plan {

int predictMain(int, char**) {
  std::fputs(
      "moeccl-plan predict: moeccl was built without its layers; build it with -Dmoe=enabled\n",
      stderr);
  return EXIT_FAILURE;
}

}  // namespace moeccl::perf::plan

// `moeccl-plan predict`: which schedule, grid and placement is the fastest on a cluster that need
// not exist. See perf/plan/PREDICT.md.
#pragma once

namespace moeccl::perf::plan {

// The exit code. argv[0] is "predict".
int predictMain(int argc, char** argv);

}  // namespace moeccl::perf::plan

// `moeccl-perf layers`: whole MoE layers under every schedule, and how good the automatic choice of
// one is. See perf/perf/LAYERS.md.
#pragma once

namespace moeccl::perf::layers {

// Runs the tool with the arguments from "layers" on. Returns the exit code.
int main(int argc, char** argv);

}  // namespace moeccl::perf::layers

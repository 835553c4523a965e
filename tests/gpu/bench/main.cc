// bench_gpu [--quick] [--once] [--experts E]... WHAT...: times kernels of a GPU, those that layers
// and token routes use, by what they are about. kernel_bench.py measures PyTorch beside them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

struct Named {
  const char* name;
  void (*run)(Bench& bench);
};

constexpr Named kAll[] = {{"copy", [](Bench& bench) { bench.measureCopy(); }},
                          {"layouts", &layouts},
                          {"gate", &gate},
                          {"rules", &rules},
                          {"experts", &experts},
                          {"lists", &lists},
                          {"rows", &rows},
                          {"latency", &latency}};

int usage() {
  std::string names;
  for (const Named& named : kAll) names += std::string(" ") + named.name;
  std::fprintf(stderr, "usage: bench_gpu [--quick] [--once] [--experts E]... WHAT...\nWHAT:%s\n",
               names.c_str());
  return 2;
}

int measure(int argc, char** argv) {
  Bench::Options options;
  std::vector<std::int32_t> experts;
  std::vector<Named> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto* const found = std::ranges::find(kAll, argument, &Named::name);
    if (argument == "--quick")
      options.quick = true;
    else if (argument == "--once")
      options.once = true;
    else if (argument == "--experts" && i + 1 < argc)
      experts.push_back(std::atoi(argv[++i]));
    else if (found != std::end(kAll))
      wanted.push_back(*found);
    else
      return usage();
  }
  if (wanted.empty()) return usage();
  if (!experts.empty()) options.experts = experts;
  Bench bench(options);
  for (const Named& named : wanted) named.run(bench);
  return bench.failed() ? 1 : 0;
}

}  // namespace
}  // namespace moeccl::gpu

int main(int argc, char** argv) {
  try {
    return moeccl::gpu::measure(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return 1;
  }
}

// In place of layers.cc and layer_*.cc in a build without libmoeccl-moe.
#include <cstdio>
#include <cstdlib>

#include "perf/perf/layers.h"

namespace moeccl::perf::layers {

int main(int, char**) {
  std::fprintf(stderr,
               "moeccl-perf layers: moeccl was built without its layers; build it with "
               "-Dmoe=enabled\n");
  return EXIT_FAILURE;
}

}  // namespace moeccl::perf::layers

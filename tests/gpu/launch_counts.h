// How many kernels and memsets a GPU is given behind calls that layers make:
// emulation/launches_test.cc counts them, backward in 16 bits, and tests on doubles of GPUs, which
// see calls alone, add them up.
#pragma once

#include <string_view>

namespace moeccl::test {

struct CallLaunches {
  std::string_view call;  // as the double names it
  int launches;           // at most; of cuBLAS one for all experts
};

inline constexpr CallLaunches kCallLaunches[] = {
    {"computing logits", 1},
    {"choosing experts", 2},
    {"choosing experts alone", 1},
    {"giving places", 7},
    {"listing choices by expert", 5},
    {"gathering tokens", 1},
    {"experts", 6},
    {"adding to tokens", 1},
    {"scattering tokens", 1},
    {"clearing places", 1},
    {"combining tokens", 1},
    {"clearing memory", 1},
    {"computing a gate's loss", 1},
    {"differentiating a gate", 9},
    {"experts backward", 13},
    {"gathering gradients of tokens", 1},
    {"scattering gradients of tokens", 1},
    {"adding to gradients of tokens", 1},
};

// 0: none of these.
constexpr int launchesOf(std::string_view call) {
  for (const CallLaunches& known : kCallLaunches)
    if (known.call == call) return known.launches;
  return 0;
}

}  // namespace moeccl::test

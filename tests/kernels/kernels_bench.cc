// Times the kernels beside the plain loops of plain.h:
//
//     kernels_bench [TEXT]    only the cases with TEXT in their name, such as "bfloat16 sum"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>

#include "tests/kernels/cases.h"

namespace moeccl {
namespace {

double secondsOf(const std::function<void()>& call, int times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The shortest of a few measurements, each long enough for the clock: all else is disturbance.
double secondsPerCall(const std::function<void()>& call) {
  constexpr double kEnough = 1e-3;
  constexpr int kMeasurements = 3;
  int times = 1;
  while (secondsOf(call, times) < kEnough) times *= 2;
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMeasurements; ++i) shortest = std::min(shortest, secondsOf(call, times));
  return shortest / times;
}

void printTimes(const KernelCase& timed) {
  const double fast = secondsPerCall(timed.fast), plain = secondsPerCall(timed.plain);
  const auto bytes = static_cast<double>(timed.bytes);
  std::printf("%-8s%-12s%-9s%-15s%10zu%10.2f%10.2f%8.1f\n", timed.kernel.c_str(),
              timed.type.c_str(), timed.op.c_str(), timed.shape.c_str(), timed.bytes,
              bytes / plain * 1e-9, bytes / fast * 1e-9, plain / fast);
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "";
  std::printf("GB/s of the bytes read and written by a call, and how much faster than plain.\n\n");
  std::printf("%-8s%-12s%-9s%-15s%10s%10s%10s%8s\n", "kernel", "type", "op", "shape", "bytes",
              "plain", "fast", "ratio");
  moeccl::forEachCase([&](const moeccl::KernelCase& test) {
    if (test.timed && test.name().find(text) != std::string::npos) moeccl::printTimes(test);
  });
}

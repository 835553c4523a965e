// Runs the tests, and allocates and checks poisoned memory.
#include "tests/gpu/check.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

namespace moeccl::gpu {
namespace {

struct Registered {
  const char* name;
  void (*run)(Random&);
};

std::vector<Registered>& tests() {
  static std::vector<Registered> all;
  return all;
}

int failures = 0, expectations = 0;
bool isQuick = false;

// 77, as for meson: there is nothing to run on.
int skip(const char* why) {
  std::printf("%s\n0 passed, 0 failed, %zu skipped\n", why, tests().size());
  return 77;
}

bool passes(const Registered& test, unsigned seed) {
  failures = expectations = 0;
  Random random(seed);
  try {
    test.run(random);
    cuda(cudaDeviceSynchronize(), "the end of the test");
  } catch (const std::exception& error) {
    expect(false, error.what());
  }
  if (expectations == 0) expect(false, "nothing was checked");
  std::printf("%s %s (%d checks, seed %u)\n", failures == 0 ? "ok    " : "FAILED", test.name,
              expectations, seed);
  std::fflush(stdout);
  return failures == 0;
}

}  // namespace

Test::Test(const char* name, void (*run)(Random&)) { tests().push_back({name, run}); }

void expect(bool holds, const std::string& what) {
  constexpr int kPrinted = 5;
  ++expectations;
  if (!holds && ++failures <= kPrinted) std::printf("  %s\n", what.c_str());
}

void cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

bool quick() { return isQuick; }

int run(int argc, char** argv) {
  unsigned seed = std::random_device()();
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick")
      isQuick = true;
    else if (argument == "--seed" && i + 1 < argc)
      seed = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    else
      only = argument;
  }
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess)
    return skip(cudaGetErrorString(status));
  if (devices == 0) return skip("there is no GPU");
  cudaDeviceProp device;
  cuda(cudaGetDeviceProperties(&device, 0), "asking for the GPU's name");
  std::printf("%s, seed %u\n", device.name, seed);
  int passed = 0, failed = 0, skipped = 0;
  for (const Registered& test : tests())
    if (std::string(test.name).find(only) == std::string::npos)
      ++skipped;
    else
      ++(passes(test, seed) ? passed : failed);
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed == 0 ? 0 : 1;
}

}  // namespace moeccl::gpu

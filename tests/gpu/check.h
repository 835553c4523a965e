// What tests on a GPU are made of, where there is no GoogleTest: tests that register themselves,
// expectations that are counted, memory of the GPU with poison in and around it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace moeccl::gpu {

using Random = std::mt19937;

// A test is called once, with random numbers of the run's seed.
struct Test {
  Test(const char* name, void (*run)(Random&));
};

#define GPU_TEST(name)                                             \
  static void name(::moeccl::gpu::Random&);                        \
  static const ::moeccl::gpu::Test registered_##name(#name, name); \
  static void name([[maybe_unused]] ::moeccl::gpu::Random& random)

// Expectations of the running test; the first few failures are printed.
void expect(bool holds, const std::string& what);
void cuda(cudaError_t status, const char* what);
// Under compute-sanitizer, and without a GPU, which is slow: smaller sizes do.
bool quick();

// Runs the tests that the arguments name; returns the exit code.
int run(int argc, char** argv);

constexpr unsigned char kPoison = 0xa7;

// `count` elements on the GPU; poison around them must stay. shift: bytes behind an aligned
// address.
template <typename T>
class Device {
 public:
  explicit Device(std::size_t count, std::size_t shift = 0) : count_(count), shift_(shift) {
    cuda(cudaMalloc(reinterpret_cast<void**>(&all_), bytes()), "allocating");
    cuda(cudaMemset(all_, kPoison, bytes()), "poisoning");
  }
  explicit Device(const std::vector<T>& values, std::size_t shift = 0)
      : Device(values.size(), shift) {
    cuda(cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
         "copying in");
  }
  Device(const Device&) = delete;
  ~Device() { cudaFree(all_); }

  T* data() { return reinterpret_cast<T*>(all_ + kAround + shift_); }
  std::size_t size() const { return count_; }

  std::vector<T> get(const std::string& what) const {
    std::vector<unsigned char> copy(bytes());
    cuda(cudaDeviceSynchronize(), "waiting");
    cuda(cudaMemcpy(copy.data(), all_, copy.size(), cudaMemcpyDeviceToHost), "copying out");
    const std::size_t begin = kAround + shift_, end = begin + count_ * sizeof(T);
    bool whole = true;
    for (std::size_t i = 0; i < copy.size(); ++i)
      whole &= (i >= begin && i < end) || copy[i] == kPoison;
    expect(whole, what + " wrote beside its memory");
    std::vector<T> values(count_);
    std::copy(copy.data() + begin, copy.data() + end,
              reinterpret_cast<unsigned char*>(values.data()));
    return values;
  }

 private:
#ifdef MOECCL_ADDRESS_SANITIZER  // which watches what lies beside what was allocated, reads too
  static constexpr std::size_t kAround = 0;
#else
  static constexpr std::size_t kAround = 256;
#endif
  std::size_t bytes() const { return count_ * sizeof(T) + shift_ + 2 * kAround; }

  std::size_t count_, shift_;
  unsigned char* all_ = nullptr;
};

template <typename T>
void expectSame(const std::vector<T>& values, const std::vector<T>& expected,
                const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::memcmp(&values[i], &expected[i], sizeof(T)) != 0)
      return expect(false, what + ": element " + std::to_string(i) + " of " +
                               std::to_string(expected.size()) + " differs");
  expect(true, what);
}

template <typename T>
void expectClose(const std::vector<T>& values, const std::vector<T>& expected, double tolerance,
                 const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = values[i], b = expected[i];
    if (!(std::fabs(a - b) <= tolerance * std::max(1.0, std::fabs(b))))
      return expect(false, what + ": element " + std::to_string(i) + " is " + std::to_string(a) +
                               " instead of " + std::to_string(b));
  }
  expect(true, what);
}

}  // namespace moeccl::gpu

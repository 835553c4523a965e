// Times of kernels on a GPU, as graphs replay them, so that nothing of the host is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/check.h"

namespace moeccl::gpu {

struct Sizes {
  std::int64_t tokens, embedding;
  std::int32_t experts, choices;
};

// A kernel, or some of them, of a size.
struct Case {
  std::string kernel;
  Sizes sizes;
  double bytes = 0, flops = 0;  // that it must move and do; 0: unknown
  bool captured = true;         // else it is called, not replayed
  std::string type = "bfloat16";
};

class Bench {
 public:
  struct Options {
    bool quick = false;  // small sizes, each once: whether all of it runs
    bool once = false;   // one call of each, for tools that watch kernels
    std::vector<std::int32_t> experts = {64, 256};
  };
  explicit Bench(const Options& options);
  Bench(const Bench&) = delete;
  ~Bench();

  bool quick() const { return options_.quick; }
  // The tokens of a decoding step, and of one in training.
  std::vector<std::int64_t> decoding() const;
  std::int64_t training() const { return quick() ? 24 : 8192; }
  std::vector<std::int64_t> tokens() const;
  const std::vector<std::int32_t>& experts() const { return options_.experts; }
  std::int64_t embedding() const { return quick() ? 128 : 7168; }
  static constexpr std::int32_t kChoices = 8;

  // How many buffers of so many bytes take turns, so that a call finds nothing in a cache.
  int turnsOf(std::size_t bytes) const;
  // Measures work(turn, stream), beside a copy of as many bytes where it has no operations, prints
  // and records it. Where it throws, the benchmark goes on with the next one, and ends with 1.
  using Work = std::function<void(int turn, cudaStream_t stream)>;
  void measure(const Case& what, int turns, const Work& work);
  // The rate of a large copy.
  void measureCopy();
  bool failed() const { return failed_; }

 private:
  double microseconds(int turns, bool captured, const Work& work);
  double timeOf(int calls, const std::function<void()>& enqueue);
  double copyOf(double bytes, int turns);

  const Options options_;
  bool failed_ = false;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
};

// Fills memory with bfloat16 numbers from -1 to 1, which are no odd ones as float32 either.
void fillRandomly(void* memory, std::size_t bytes);

// Random memory for each turn, 256-byte aligned.
template <typename T>
class Turns {
 public:
  Turns(int turns, std::int64_t count)
      : apart_((static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256),
        all_(static_cast<std::size_t>(turns) * apart_) {
    fillRandomly(all_.data(), all_.size());
  }
  T* of(int turn) {
    return reinterpret_cast<T*>(all_.data() + static_cast<std::size_t>(turn) * apart_);
  }

 private:
  std::size_t apart_;
  Device<std::byte> all_;
};

// k different experts for each token at random, with a place each.
struct Routing {
  explicit Routing(const Sizes& sizes);

  std::vector<std::int32_t> experts;  // [tokens][k]
  std::vector<std::int64_t> slots;
  std::vector<float> weights;
  std::int64_t stride;  // places of an expert
};

}  // namespace moeccl::gpu

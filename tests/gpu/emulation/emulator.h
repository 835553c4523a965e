// Runs the blocks of a CUDA kernel on the host, one after another. The threads of a block are
// fibres that are switched at barriers, shuffles and votes alone, in an order that tests choose:
// what needs a barrier that is not there may give other results in one of the orders. Not every
// race does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The indices and sizes of the thread that runs.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace moeccl::emulation {

// The order of blocks, and of the threads in each.
enum class Order { rising, falling, random };
void setOrder(Order order, unsigned seed);

// Where a kernel calls something.
struct Site {
  const char* file;
  int line;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Runs all threads; each block has so many bytes that are poisoned first. "" or what is wrong with
// the kernel: barriers, shuffles or votes that not all threads reach that must. One at a time,
// whoever calls.
std::string run(dim3 blocks, dim3 threads, const std::function<void()>& kernel,
                std::size_t sharedBytes = 0);

// The most warps of a block in the last run of which threads have voted or shuffled. 0: none has.
int busyWarps();

// What follows is called by threads of kernels.

// Goes on when all threads of the block have come here.
void waitForBlock(const char* what, Site site);

// Goes on when all lanes of the mask have come here. What each of them has brought: a word for
// every lane of the warp, valid for those of the mask until this thread waits again.
const std::uint64_t* meet(const char* what, unsigned mask, std::uint64_t word, Site site);
int laneOfThread();
// The memory that the block shares.
std::byte* sharedMemory();
// Ends the kernel.
[[noreturn]] void fault(const std::string& text, Site site);

}  // namespace moeccl::emulation

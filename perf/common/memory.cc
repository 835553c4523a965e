// Keeps buffers in host memory, and opens a GPU's where that is asked for.
#include "perf/common/memory.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace moeccl::perf {
namespace {

class HostMemory final : public Memory {
 public:
  moecclMemory_t kind() const override { return moecclMemoryHost; }
  std::string device() const override { return ""; }

  std::byte* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* const memory = std::malloc(bytes);
    if (memory == nullptr)
      throw std::runtime_error("there are no " + std::to_string(bytes) + " bytes of memory left");
    // Pages are there before they are measured.
    return static_cast<std::byte*>(std::memset(memory, 0, bytes));
  }
  void free(std::byte* memory) noexcept override { std::free(memory); }
  void put(std::byte* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void get(void* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  moecclStream_t stream() const override { return nullptr; }
  void synchronize() override {}
};

}  // namespace

std::unique_ptr<Memory> openMemory(moecclMemory_t kind) {
  if (kind == moecclMemoryCuda) return openCudaMemory();
  return std::make_unique<HostMemory>();
}

}  // namespace moeccl::perf

// Where the buffers of a measurement are: in host memory, or on a GPU.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <memory>
#include <string>

namespace moeccl::perf {

// All but what frees may throw std::runtime_error.
class Memory {
 public:
  virtual ~Memory() = default;

  virtual moecclMemory_t kind() const = 0;
  // "NVIDIA H200, CUDA driver 13.0"; "" for host memory.
  virtual std::string device() const = 0;

  // Zeros. nullptr for no bytes.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  // Between here and a host's memory; complete when they return.
  virtual void put(std::byte* to, const void* from, std::size_t bytes) = 0;
  virtual void get(void* to, const std::byte* from, std::size_t bytes) = 0;

  // The stream on which calls are measured. NULL in host memory, where they return when they are
  // complete.
  virtual moecclStream_t stream() const = 0;
  // Waits for the stream.
  virtual void synchronize() = 0;
};

// A GPU is this rank's: the one of its number on its node, as its launcher has it, or else of its
// rank, counted around where there are not so many. It becomes the current one. Throws
// std::runtime_error, with what is missing.
std::unique_ptr<Memory> openMemory(moecclMemory_t kind);
// In cuda_memory.cc, or cuda_memory_absent.cc where there is no CUDA to build with.
std::unique_ptr<Memory> openCudaMemory();

// Bytes of a Memory, which must outlive them.
class Buffer {
 public:
  explicit Buffer(Memory& memory, std::size_t bytes = 0) : memory_(&memory) { atLeast(bytes); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { memory_->free(data_); }

  std::byte* data() const { return data_; }
  // Its content is lost where it grows.
  void atLeast(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_->free(data_);
    data_ = nullptr;
    bytes_ = 0;
    data_ = memory_->allocate(bytes);
    bytes_ = bytes;
  }

 private:
  Memory* memory_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace moeccl::perf

// The memory that a pass of a layer works in, and how rows are moved in it. Whoever computes brings
// it.
//
// Pointers without a type are to elements of the layer's datatype, counts are of elements, and all
// of it lies in the memory that allocate gives, as do the caller's tokens and weights. Every
// operation has a stream, as collectives have: see onStreams. Any call may throw Error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/route/side_stream.h"

namespace moeccl {

struct FreeMemory {
  void operator()(void* memory) const { free(memory); }
  void (*free)(void*) = nullptr;
};
using Memory = std::unique_ptr<void, FreeMemory>;

// Elements that lie together before and after.
struct CopiedRun {
  void* to;
  const void* from;
  std::int64_t count;
};

class Mover {
 public:
  Mover(moecclDataType_t datatype, std::int64_t elementBytes)
      : datatype_(datatype), elementBytes_(elementBytes) {}
  virtual ~Mover() = default;

  moecclDataType_t datatype() const { return datatype_; }
  std::int64_t elementBytes() const { return elementBytes_; }

  // False: the caller's thread computes, and has done so when a call returns, whatever the stream;
  // so it must itself have waited for the collectives before. True: work is queued on the stream
  // behind them.
  virtual bool onStreams() const = 0;

  // Uninitialised. Throws.
  virtual Memory allocate(std::size_t bytes) = 0;
  // Memory in place of `memory`, whose `room` bytes do not suffice, for at least `bytes`, and sets
  // `room`. A quarter is added where there is as much: not every new maximum should ask again, as
  // freeing memory of a GPU waits for all of its work. The old goes first, so that both are never
  // there together.
  void grow(Memory& memory, std::size_t& room, std::size_t bytes) {
    const std::size_t ample = std::max(bytes, room + room / 4);
    room = 0;
    memory.reset();
    try {
      memory = allocate(ample);
      room = ample;
    } catch (...) {
      if (ample == bytes) throw;
      memory = allocate(bytes);
      room = bytes;
    }
  }
  Memory elements(std::int64_t count) {
    return allocate(static_cast<std::size_t>(count * elementBytes_));
  }
  void* at(void* elements, std::int64_t index) const {
    return static_cast<std::byte*>(elements) + index * elementBytes_;
  }
  const void* at(const void* elements, std::int64_t index) const {
    return static_cast<const std::byte*>(elements) + index * elementBytes_;
  }

  // For the few numbers that the host looks at: `bytes` bytes to and from its own memory, which may
  // be used again on return. toHost waits for what is queued on the stream.
  virtual void toHost(void* host, const void* from, std::size_t bytes, moecclStream_t stream) = 0;
  virtual void fromHost(void* to, const void* host, std::size_t bytes, moecclStream_t stream) = 0;

  // For exchanges of `comm` and its relatives, which must outlive it.
  virtual std::unique_ptr<SideStream> sideStream(moecclComm_t comm) = 0;

  virtual void clear(void* to, std::size_t bytes, moecclStream_t stream) = 0;
  void zero(void* to, std::int64_t count, moecclStream_t stream) {
    clear(to, static_cast<std::size_t>(count * elementBytes_), stream);
  }
  void copy(void* to, const void* from, std::int64_t count, moecclStream_t stream) {
    const CopiedRun run{to, from, count};
    copyRuns({&run, 1}, stream);
  }
  // All at once, so no run touches what another writes.
  virtual void copyRuns(std::span<const CopiedRun> runs, moecclStream_t stream) = 0;
  // to += from.
  virtual void add(void* to, const void* from, std::int64_t count, moecclStream_t stream) = 0;
  // to [inner][outer][block] = from [outer][inner], whose blocks begin `distance` elements apart.
  virtual void transpose(void* to, const void* from, std::int64_t outer, std::int64_t inner,
                         std::int64_t block, std::int64_t distance, moecclStream_t stream) = 0;

 private:
  const moecclDataType_t datatype_;
  const std::int64_t elementBytes_;
};

}  // namespace moeccl

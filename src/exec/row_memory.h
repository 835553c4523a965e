// Memory of a GPU for lists that calls bring along, each with memory of the host's from which it is
// copied. It is used again without waiting: on the GPU by calls of the same communicator, which
// follow each other (NcclLanes), on the host once a copy is known to be complete.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "src/exec/gpu.h"

namespace moeccl {

class RowMemory {
 public:
  // Calls are made by one thread at a time, while the device is its current one.
  explicit RowMemory(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;

  struct Piece {
    std::byte *device = nullptr, *host = nullptr;
    std::size_t bytes = 0;
    Gpu::Event copied = nullptr;  // recorded behind the last copy
    bool isRecorded = false;
    std::atomic<bool> isTaken = false;
  };
  // A piece of at least so many bytes, until the last who has it lets go; onHost: with as many of
  // the host. Throws Error. A graph lets go in a thread of CUDA's, which may wait for nothing: not
  // for a lock either, behind which this allocates.
  std::shared_ptr<Piece> take(std::size_t bytes, bool onHost);
  // Enqueues the copy of the piece's first bytes from the host.
  void copy(Piece& piece, std::size_t bytes, Gpu::Stream stream);
  // Frees all pieces, also those that somebody has: no call will use them any more.
  void close() noexcept;

 private:
  std::shared_ptr<Piece> find(std::size_t bytes, bool onHost);

  const std::shared_ptr<Gpu> gpu_;
  std::vector<std::shared_ptr<Piece>> pieces_;
};

}  // namespace moeccl

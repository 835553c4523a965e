// What brings rows to experts: the memory of a pass, and who moves rows in it. It needs no BLAS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/route/mover.h"
#include "src/route/row_router.h"

namespace moeccl {

// Rows that are gathered of a part of a router's list, as RowRouter::gather does.
struct Gathering {
  RowRouter* router;
  std::int64_t begin, count;
  const void* input;
  void* rows;
};

class RowCompute : public Mover {
 public:
  using Mover::Mover;

  // The host's memory that toHostLater takes, which does not wait: it is there once the stream has
  // come so far.
  virtual Memory allocateForHost(std::size_t bytes) = 0;
  virtual void toHostLater(void* host, const void* from, std::size_t bytes,
                           moecclStream_t stream) = 0;

  // A place in the work of streams, nowhere yet.
  virtual std::unique_ptr<Mark> mark() { return std::make_unique<Mark>(); }
  // Waits for what is queued on the stream.
  virtual void await(moecclStream_t) {}
  // Throws Error (InvalidUsage) where a pass cannot be queued on the stream.
  virtual void requireUsable(moecclStream_t) {}

  // Several at once, of its routers.
  virtual void gather(std::span<const Gathering> parts, moecclStream_t stream) = 0;
};

// One whose routers are given all that they move by.
class GivenCompute : public RowCompute {
 public:
  using RowCompute::RowCompute;

  // Must not outlive this.
  virtual std::unique_ptr<GivenRouter> router(const RowShape& shape) = 0;
  // On GPUs, makes a device the thread's current one; returns which was. Throws Error.
  virtual int exchangeDevice(int device) { return device; }
  // to [count] = from [count], gradients of weights as its routers give them: float64 of float64,
  // else float32.
  virtual void widen(const void* from, std::int64_t count, void* to, moecclStream_t stream) = 0;
};

// On host memory, and on the current device of the thread, which has to be current in every call.
// Both throw Error.
std::unique_ptr<GivenCompute> givenComputeOnHost(moecclDataType_t datatype);
std::unique_ptr<GivenCompute> givenComputeOnGpu(moecclDataType_t datatype);

}  // namespace moeccl

// Who takes part in a measurement: moeccl with one algorithm, or MPI with one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "perf/common/collectives.h"
#include "perf/common/memory.h"
#include "perf/perf/options.h"

namespace moeccl::perf {

class Competitor {
 public:
  Competitor(std::string name, bool isMpi) : name_(std::move(name)), isMpi_(isMpi) {}
  virtual ~Competitor() = default;
  Competitor(const Competitor&) = delete;
  Competitor& operator=(const Competitor&) = delete;

  // Blocks of `count` elements. Collective. Throws std::runtime_error. On a GPU it has only been
  // enqueued.
  virtual void exchange(const void* send, void* recv, std::size_t count, const DataType& type) = 0;
  // After an exchange that is looked at: moves the result where the others leave theirs.
  virtual void settle(const void*, void*, std::size_t, const DataType&) {}
  // By the competitor's own means, so that its connections and processes are awake. Collective.
  virtual void barrier() = 0;

  const std::string& name() const { return name_; }
  bool isMpi() const { return isMpi_; }

 private:
  std::string name_;
  bool isMpi_;
};

// Throws std::runtime_error with what the library says where `result` is none of success.
void require(moecclResult_t result, const char* what, moecclComm_t comm);

struct DestroyComm {
  void operator()(moecclComm_t comm) const { moecclCommDestroy(comm); }
};
using Comm = std::unique_ptr<moecclComm, DestroyComm>;

struct DestroyGrid {
  void operator()(moecclGrid_t grid) const { moecclGridDestroy(grid); }
};
using Grid = std::unique_ptr<moecclGrid, DestroyGrid>;

// On a communicator of its own, split from `comm`, whose memory is `memory`. Collective over it.
// `world` and `memory` must outlive it.
std::unique_ptr<Competitor> makeCompetitor(const MeasuredCollective& collective, const World& world,
                                           const std::string& algorithm, moecclComm_t comm,
                                           Memory& memory);

}  // namespace moeccl::perf

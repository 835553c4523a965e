// The ranks of one run: how they started, and what they tell each other beside the measurements.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "perf/common/competitor.h"
#include "perf/common/memory.h"
#include "perf/common/mpi_competitor.h"
#include "perf/common/turns.h"

namespace moeccl::perf {

class Job {
 public:
  // From mpirun if that started this process, else by moecclCommInitEnv. Its communicator is of
  // options.memory. Collective. Throws std::runtime_error.
  explicit Job(const Options& options);
  // The job of ranks that have found each other; buffers are in `memory`. Throws
  // std::runtime_error.
  Job(Comm comm, std::unique_ptr<Memory> memory);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  moecclComm_t comm() const { return comm_.get(); }
  std::vector<int> ranksPerNode() const;
  // Where the communicator's buffers are.
  Memory& memory() const { return *memory_; }
  // nullptr when mpirun did not start the ranks.
  Mpi* mpi() const { return mpi_.get(); }

  // Collective. `values` of every rank, rank by rank; all come with the same number.
  template <typename Value>
  std::vector<Value> gather(const std::vector<Value>& values) const {
    std::vector<Value> all(values.size() * static_cast<std::size_t>(ranks_));
    gatherBytes(values.data(), all.data(), values.size() * sizeof(Value));
    return all;
  }
  // Collective.
  std::int64_t sum(std::int64_t value) const;
  // For takeTurns().
  OverRanks overRanks() const;

  // Everything has gone well on this rank: leave together with the others. Collective.
  void leave();
  // Ends this rank, and with it the others.
  [[noreturn]] void fail();

 private:
  void findPlace();
  void gatherBytes(const void* mine, void* all, std::size_t bytes) const;

  std::unique_ptr<Memory> memory_;
  mutable Buffer mine_, everyones_;  // of gatherBytes(), on a GPU
  std::unique_ptr<Mpi> mpi_;         // outlives the communicator
  Comm comm_;
  int rank_ = 0;
  int ranks_ = 1;
};

// The rest of main() of a tool with ranks: they join, do `work`, which returns the exit code, and
// leave together. Whoever fails takes the others down.
int runRanks(const char* tool, const Options& options, const std::function<int(Job&)>& work);

}  // namespace moeccl::perf

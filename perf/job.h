// The ranks of one run: how they started, and what they tell each other beside the measurements.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "perf/contender.h"
#include "perf/mpi_contender.h"

namespace moeccl::perf {

// Whether this process is the one of a run that says what concerns all of them. Known before they have
// found each other.
bool speaksForAll();

class Job {
 public:
  // From mpirun if that started this process, else from the environment of examples/common/launch.h.
  // Collective. Throws std::runtime_error.
  explicit Job(const Options& options);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  moecclComm_t comm() const { return comm_.get(); }
  std::vector<int> ranksPerNode() const;
  // nullptr when mpirun did not start the ranks.
  Mpi* mpi() const { return mpi_.get(); }

  // Collective. `values` of every rank, rank by rank; all come with the same number.
  template <typename Value>
  std::vector<Value> gather(const std::vector<Value>& values) const {
    std::vector<Value> all(values.size() * static_cast<std::size_t>(ranks_));
    require(moecclAllGather(values.data(), all.data(), values.size() * sizeof(Value), moecclUint8,
                            comm(), nullptr),
            "gather the results", comm());
    return all;
  }
  // Collective.
  std::int64_t sum(std::int64_t value) const;

  // Everything has gone well on this rank: leave together with the others. Collective.
  void leave();
  // Ends this rank, and with it the others.
  [[noreturn]] void fail();

 private:
  std::unique_ptr<Mpi> mpi_;  // outlives the communicator
  Comm comm_;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace moeccl::perf

#include "perf/job.h"

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include "examples/common/launch.h"

namespace moeccl::perf {

bool speaksForAll() {
  for (const char* name : {"MOECCL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank) == 0;
  return true;
}

Job::Job(const Options& options) {
  const bool compare = !options.mpiAlgorithms.empty();
  moecclComm_t comm = nullptr;
  if (compare || (std::getenv("MOECCL_RANK") == nullptr && startedByMpi())) {
    const bool choose = options.mpiAlgorithms != std::vector<std::string>{"default"};
    mpi_ = startMpi(compare && choose, options.mpiEnvironment);
    require(mpi_->join(&comm), "join", nullptr);
  } else if (launchComm(&comm, nullptr) != moecclSuccess) {
    throw std::runtime_error("this rank could not join the others");
  }
  comm_.reset(comm);
  require(moecclCommUserRank(comm, &rank_), "ask for the rank", comm);
  require(moecclCommCount(comm, &ranks_), "count the ranks", comm);
}

std::vector<int> Job::ranksPerNode() const {
  int nodes = 0;
  require(moecclCommNodeCount(comm(), &nodes), "count the nodes", comm());
  std::vector<int> sizes(static_cast<std::size_t>(nodes));
  for (int rank = 0; rank < ranks_; ++rank) {
    int node = 0;
    require(moecclCommNodeOfRank(comm(), rank, &node), "ask for a node", comm());
    ++sizes[static_cast<std::size_t>(node)];
  }
  return sizes;
}

std::int64_t Job::sum(std::int64_t value) const {
  const std::vector<std::int64_t> all = gather(std::vector<std::int64_t>{value});
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

void Job::leave() {
  require(moecclCommDestroy(comm_.release()), "leave", nullptr);
  mpi_.reset();
}

void Job::fail() {
  // The peers get an error from whatever they wait for.
  if (comm_) moecclCommAbort(comm_.release());
  if (mpi_) mpi_->abort(1);
  std::_Exit(1);
}

}  // namespace moeccl::perf

// Starts the ranks of a run by MPI or by moecclCommInitEnv, gathers what they have measured, and
// aborts the communicator where one of them fails.
#include "perf/common/job.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

namespace moeccl::perf {

Job::Job(const Options& options)
    : memory_(openMemory(options.memory)), mine_(*memory_), everyones_(*memory_) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.memory = options.memory;
  const bool compare = !options.mpiAlgorithms.empty();
  moecclComm_t comm = nullptr;
  if (compare || (std::getenv("MOECCL_RANK") == nullptr && startedByMpi())) {
    const bool choose = options.mpiAlgorithms != std::vector<std::string>{"default"};
    mpi_ = startMpi(compare && choose, options.mpiEnvironment);
    require(mpi_->join(&comm, config), "join", nullptr);
  } else {
    require(moecclCommInitEnv(&comm, &config), "join", nullptr);
  }
  comm_.reset(comm);
  findPlace();
}

Job::Job(Comm comm, std::unique_ptr<Memory> memory)
    : memory_(std::move(memory)), mine_(*memory_), everyones_(*memory_), comm_(std::move(comm)) {
  findPlace();
}

void Job::findPlace() {
  require(moecclCommUserRank(comm(), &rank_), "ask for the rank", comm());
  require(moecclCommCount(comm(), &ranks_), "count the ranks", comm());
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

void Job::gatherBytes(const void* mine, void* all, std::size_t bytes) const {
  if (memory_->kind() == moecclMemoryHost) {
    require(moecclAllGather(mine, all, bytes, moecclUint8, comm(), nullptr), "gather the results",
            comm());
    return;
  }
  const auto ranks = static_cast<std::size_t>(ranks_);
  mine_.atLeast(bytes);
  everyones_.atLeast(bytes * ranks);
  memory_->put(mine_.data(), mine, bytes);
  require(moecclAllGather(mine_.data(), everyones_.data(), bytes, moecclUint8, comm(),
                          memory_->stream()),
          "gather the results", comm());
  memory_->get(all, everyones_.data(), bytes * ranks);
}

std::int64_t Job::sum(std::int64_t value) const {
  const std::vector<std::int64_t> all = gather(std::vector<std::int64_t>{value});
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

OverRanks Job::overRanks() const {
  return [this](const std::vector<double>& mine, Average average) {
    return perf::overRanks(gather(mine), mine.size(), average);
  };
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

int runRanks(const char* tool, const Options& options, const std::function<int(Job&)>& work) {
  std::optional<Job> job;
  try {
    job.emplace(options);
    const int code = work(*job);
    job->leave();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: rank %d: %s\n", tool, job ? job->rank() : 0, error.what());
    if (job) job->fail();
    return EXIT_FAILURE;
  }
}

}  // namespace moeccl::perf

// What the environment says about the shim.
#pragma once

#include <array>

namespace moeccl::mpi {

enum class Collective {
  allToAll,
  allToAllv,
  allGather,
  allGatherv,
  reduceScatter,
  allReduce,
  iAllToAll,
  count
};

inline constexpr std::array<const char*, static_cast<int>(Collective::count)> kNames = {
    "alltoall", "alltoallv", "allgather", "allgatherv", "reduce_scatter", "allreduce", "ialltoall"};

struct Settings {
  // By collective: whether moeccl may serve it. MOECCL_MPI=0, or a list such as alltoall,allgather.
  std::array<bool, static_cast<int>(Collective::count)> serves{};
  // Calls of one size that each library has before the faster is chosen; 0: moeccl serves all.
  // MOECCL_MPI_TRIALS.
  int trials = 5;
  // Sums and products of floats too, whose last bits depend on who computes them.
  // MOECCL_MPI_FLOAT_SUMS=1.
  bool floatSums = false;
  // Rank 0 says at the end what was served. MOECCL_MPI_REPORT=0 is silent.
  bool report = true;

  bool any() const;
};

const Settings& settings();

}  // namespace moeccl::mpi

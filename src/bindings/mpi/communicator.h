// What the shim keeps with each communicator of MPI's: moeccl's communicator of the same ranks, and
// who serves what.
#pragma once

#include <moeccl/moeccl.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "settings.h"

namespace moeccl::mpi {

// Which library serves calls of one collective and about one size. All ranks take the same turns,
// since they make the same calls in the same order, and decide the same, since they add up their
// times.
class Choice {
 public:
  bool byMoeccl() const { return decided_ ? moecclIsFaster_ : turn() == 0; }
  // After each call. The last trial decides.
  void took(double seconds, MPI_Comm comm);

 private:
  // 0: moeccl's, 1: MPI's. Each is the first of a pair of calls as often as the other.
  int turn() const { return (calls_ + calls_ / 2) % 2; }

  int calls_ = 0;
  bool decided_ = settings().trials == 0, moecclIsFaster_ = true;
  std::array<std::vector<double>, 2> seconds_;
};

class Communicator {
 public:
  // The one of comm, made when it is first asked for; nullptr: MPI serves it. Collective from the
  // second call on.
  static Communicator* of(MPI_Comm comm);
  // The same if it has been made, without waiting for anybody.
  static Communicator* joined(MPI_Comm comm);
  // Before MPI ends: releases all that are left.
  static void releaseAll();

  ~Communicator();

  int ranks() const { return ranks_; }
  moecclComm_t comm() const { return comm_; }
  // For what is not waited for: progressed by a thread. nullptr: MPI has no MPI_THREAD_MULTIPLE.
  moecclComm_t threaded() const { return threaded_; }
  moecclStream_t stream() const { return stream_; }

  // Has `ours` serve a call, a function that returns moecclResult_t, or `theirs`, which calls MPI.
  // `bytes` is equal on all ranks.
  template <typename Ours, typename Theirs>
  int serve(Collective collective, std::size_t bytes, MPI_Comm comm, Ours ours, Theirs theirs);

 private:
  Communicator() = default;
  static Communicator* known(MPI_Comm comm);
  void join(MPI_Comm comm);
  Choice& choiceOf(Collective collective, std::size_t bytes);
  // What MPI's error handler makes of it.
  int fail(moecclResult_t result, MPI_Comm comm) const;

  MPI_Comm handle_ = MPI_COMM_NULL;
  int ranks_ = 0;
  int calls_ = 0;
  bool usable_ = true;
  moecclComm_t comm_ = nullptr, threaded_ = nullptr;
  moecclStream_t stream_ = nullptr;
  std::map<std::pair<Collective, int>, Choice> choices_;
};

// Counts, for what is said at the end.
void noteServed(Collective collective, bool byMoeccl);
// Rank 0 of world says what was served.
void report(MPI_Comm world);

template <typename Ours, typename Theirs>
int Communicator::serve(Collective collective, std::size_t bytes, MPI_Comm comm, Ours ours,
                        Theirs theirs) {
  Choice& choice = choiceOf(collective, bytes);
  const bool byMoeccl = choice.byMoeccl();
  const double start = PMPI_Wtime();
  int result = MPI_SUCCESS;
  if (byMoeccl) {
    const moecclResult_t served = ours();
    noteServed(collective, true);
    if (served != moecclSuccess) return fail(served, comm);
  } else {
    result = theirs();
  }
  choice.took(PMPI_Wtime() - start, comm);
  return result;
}

}  // namespace moeccl::mpi

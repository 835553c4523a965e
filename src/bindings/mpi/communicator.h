// What the shim keeps with each communicator of MPI's: moeccl's communicator of the same ranks, and
// who serves what.
#pragma once

#include <moeccl/moeccl.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "connections.h"
#include "settings.h"
#include "waits.h"

namespace moeccl::mpi {

// Which library serves calls of one collective and about one size. All ranks take the same turns,
// since they make the same calls in the same order, and decide the same, since they add up their
// times.
class Choice {
 public:
  bool byMoeccl() const { return decided_ ? moecclIsFaster_ : turn() == 0; }
  // After each call. The last trial decides: then by how many times moeccl is as fast as MPI, from
  // what all ranks took; else 0.
  double took(double seconds, MPI_Comm comm);

 private:
  // 0: moeccl's, 1: MPI's. Each is the first of a pair of calls as often as the other.
  int turn() const { return (calls_ + calls_ / 2) % 2; }

  int calls_ = 0;
  bool decided_ = settings().trials == 0, moecclIsFaster_ = true;
  std::array<std::vector<double>, 2> seconds_;
};

// Why this rank cannot make a call as it stands. Empty: it can.
struct Doubt {
  int code = MPI_SUCCESS;
  std::string why;
};

class Communicator {
 public:
  // The one of comm, for a call with blocks of so many bytes, or 0; nullptr: MPI serves it.
  // Collective: with some calls ranks agree whether moeccl joins.
  static Communicator* of(MPI_Comm comm, std::size_t bytes);
  // The same if it has been made, without waiting for anybody.
  static Communicator* joined(MPI_Comm comm);
  // Before MPI ends: releases all that are left.
  static void releaseAll();

  ~Communicator();

  int ranks() const { return ranks_; }
  moecclComm_t comm() const { return pair_.waiting; }
  // For what is not waited for. nullptr: there is none.
  moecclComm_t threaded() const { return pair_.threaded; }
  moecclStream_t stream() const { return pair_.stream; }

  // Has `ours` serve a call, a function that returns moecclResult_t, or `theirs`, which calls MPI.
  // `bytes` is equal on all ranks. A call with `doubt` is MPI's if all ranks doubt it; else it ends
  // on all of them.
  template <typename Ours, typename Theirs>
  int serve(Collective collective, std::size_t bytes, MPI_Comm comm, const Doubt& doubt, Ours ours,
            Theirs theirs);
  // This rank does not take part in a call. Others know soon, unless they do not either.
  void tellRefusal(MPI_Comm comm);
  // The same of a call of threaded(); waits for nobody.
  void tellThreadedRefusal();
  // What MPI's error handler makes of a failure.
  int fail(int code, const std::string& why, MPI_Comm comm) const;

 private:
  Communicator() = default;
  static Communicator* known(MPI_Comm comm);
  void mayJoin(MPI_Comm comm, std::size_t bytes);
  Choice& choiceOf(Collective collective, std::size_t bytes);
  std::string lastError(moecclResult_t result) const;

  int ranks_ = 0;
  unsigned calls_ = 0;
  bool usable_ = true;
  Connections* own_ = nullptr;  // of exactly its ranks; nullptr: it may only share others
  Pair pair_;
  bool skips_ = false;  // calls of threaded()
  std::map<std::pair<Collective, int>, Choice> choices_;
};

// Counts, for what is said at the end.
void noteServed(Collective collective, bool byMoeccl);
// The same of a sum or product of floats that stays with MPI because settings() leave it there.
void noteFloatSum(Collective collective);
// The same of a trial, of calls of about `bytes` bytes.
void noteTrial(Collective collective, std::size_t bytes, double timesAsFast);
// Rank 0 of world says what was served.
void report(MPI_Comm world);

template <typename Ours, typename Theirs>
int Communicator::serve(Collective collective, std::size_t bytes, MPI_Comm comm, const Doubt& doubt,
                        Ours ours, Theirs theirs) {
  Choice& choice = choiceOf(collective, bytes);
  const double start = PMPI_Wtime();
  const Wait wait(collective, bytes, comm, start);
  int code = MPI_SUCCESS;
  if (!choice.byMoeccl()) {
    code = theirs();
  } else if (doubt.code != MPI_SUCCESS) {
    // Ranks that do not doubt the call find another one in its place, and fail.
    if (moecclBarrier(this->comm(), nullptr) == moecclSuccess) return theirs();
    return fail(doubt.code, doubt.why, comm);
  } else {
    const moecclResult_t served = ours();
    noteServed(collective, true);
    if (served != moecclSuccess) code = fail(MPI_ERR_OTHER, lastError(served), comm);
    // Then this rank has not begun it.
    if (served == moecclInvalidArgument) tellRefusal(comm);
    if (served != moecclSuccess) return code;
  }
  if (const double times = choice.took(PMPI_Wtime() - start, comm); times > 0)
    noteTrial(collective, bytes, times);
  return code;
}

}  // namespace moeccl::mpi

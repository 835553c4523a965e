// Connections of a set of ranks, which all communicators of MPI's share whose ranks are among them:
// most communicators open nothing.
#pragma once

#include <moeccl/moeccl.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeccl::mpi {

// moeccl's communicators of the same ranks, in the same order.
struct Pair {
  moecclComm_t waiting = nullptr;  // for calls that wait; the caller's thread progresses them
  // For others, progressed by a thread, and where they are queued. nullptr: MPI has no
  // MPI_THREAD_MULTIPLE.
  moecclComm_t threaded = nullptr;
  moecclStream_t stream = nullptr;

  void release();
};

class Connections {
 public:
  // The connections of exactly the ranks of `comm`, noted when they are first asked for; nullptr:
  // too many are noted already.
  static Connections* of(MPI_Comm comm);
  // The first that were opened between all ranks of `comm`; nullptr: none.
  static Connections* around(MPI_Comm comm);
  // Before MPI ends.
  static void releaseAll();

  explicit Connections(MPI_Group ranks) : ranks_(ranks) {}

  // A call that could have used them, of a communicator of exactly these ranks.
  void note(std::size_t bytes);
  // Whether they would pay, and this process may have more.
  bool areWorthIt() const;
  // Equal on all their ranks, and no others'; 0: they are not open.
  std::int64_t id() const { return id_; }

  // Both are collective over `comm`. They return the same on all ranks: whether all succeeded.
  bool open(MPI_Comm comm, bool threads);
  bool share(MPI_Comm comm, Pair* pair) const;

 private:
  void release();

  MPI_Group ranks_;
  std::int64_t calls_ = 0;
  std::size_t bytes_ = 0;
  bool failed_ = false;
  std::int64_t id_ = 0;
  Pair all_;
};

}  // namespace moeccl::mpi

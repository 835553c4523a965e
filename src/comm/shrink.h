// How the ranks that live make a communicator of their own, from one whose data connections cannot
// be relied on: all that they say to one another for that goes over the watch.
//
// Agreement. Each rank proposes a set of ranks to leave out: those that it knows to be lost, and
// those that its caller excludes. It adds what another one proposes to its own proposal, and
// proposes that. A rank that has the same proposal from all that it does not leave out has decided,
// says so, and proposes nothing any more. Whoever hears of a decision, of a rank that it does not
// leave out itself, takes it over. So nobody who lives decides otherwise: that would take another
// proposal of a rank that has decided.
//
// Attempts. Ranks shrink a communicator more than once: when one ends meanwhile, or as callers ask
// for it, and not all take part each time. Whoever has been left out, or has given up, has counted
// fewer attempts than others. So each looks for the newest that any other has begun, takes part in
// that, and leaves the one it is in where that one has no decision.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "src/base/error.h"
#include "src/bootstrap/oob.h"
#include "src/comm/communicator.h"
#include "src/watch/watch.h"

namespace moeccl {

// The communicator to shrink; its members are numbered as in the job.
struct Shrinking {
  Watch& watch;
  std::uint32_t comm;              // its number
  std::vector<int> members;        // by rank
  int rank;                        // the caller's
  std::int64_t timeoutMs;          // of each agreement; negative: for ever
  std::uint32_t* attempts;         // made so far with this communicator
  const std::atomic<bool>& ended;  // by another thread of this rank
  // Advances the failed calls of others, which wait for this rank to refuse their messages; returns
  // whether anything happened.
  std::function<bool()> progress;
};

// Collective over all members but those that are lost or that some rank has in `excluded` (ranks of
// the communicator). `make` is called on the survivors, with an all-gather among them, in the order
// of their ranks; again, for fewer, where one of them ended meanwhile. `wrong`: this rank's
// arguments are; then it makes nothing. Throws Error, on all survivors: `wrong`, what make() has
// thrown, or
//   moecclTimeout       a survivor did not come
//   moecclRemoteError   another thread of this rank has aborted the communicator
//   moecclInvalidUsage  the others have excluded this rank, and have not begun again with it
std::unique_ptr<Communicator> shrinkTo(
    const Shrinking& from, const std::vector<int>& excluded, const std::optional<Error>& wrong,
    const std::function<std::unique_ptr<Communicator>(Oob&)>& make);

}  // namespace moeccl

// What ranks that shrink a communicator agree on where one of them cannot make the new one.
#include "src/comm/shrink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/watch/local_watch.h"
#include "tests/job.h"

namespace moeccl {
namespace {

using Clock = std::chrono::steady_clock;

using Make = std::function<void(Oob&)>;

// A rank of a job of threads, with a communicator of all of them.
struct Member {
  std::unique_ptr<Watch> watch;
  std::vector<int> members;
  std::uint32_t attempts = 0;
  std::atomic<bool> ended = false;

  // Returns what shrinkTo() has thrown.
  std::string shrink(const std::vector<int>& excluded, const Make& make,
                     std::int64_t timeoutMs = 60000) {
    try {
      shrinkTo(
          {*watch, 3, members, watch->rank(), timeoutMs, &attempts, ended, [] { return false; }},
          excluded, std::nullopt, [&](Oob& oob) -> std::unique_ptr<Communicator> {
            make(oob);
            return nullptr;
          });
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

void runMembers(int ranks, const std::function<void(Member&, int rank)>& body) {
  static std::uint8_t jobs = 0;
  const Secret secret{std::byte{++jobs}};
  std::vector<Member> members(static_cast<std::size_t>(ranks));
  // Before anybody posts.
  for (int rank = 0; rank < ranks; ++rank) {
    Member& member = members[static_cast<std::size_t>(rank)];
    member.watch = makeLocalWatch(secret, rank, std::vector<std::string>(members.size(), "here"));
    for (int other = 0; other < ranks; ++other) member.members.push_back(other);
  }
  test::asThreads(ranks, [&](int rank) {
    Member& member = members[static_cast<std::size_t>(rank)];
    body(member, rank);
    member.watch->leave();
  });
}

// Returns what each has thrown.
std::vector<std::string> shrinkAll(int ranks, const Make& make) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  runMembers(ranks, [&](Member& member, int rank) {
    errors[static_cast<std::size_t>(rank)] = member.shrink({}, make);
  });
  return errors;
}

// Makes nothing, once these ranks have met.
Make meeting(const std::vector<int>& ranks, int rank) {
  return [ranks, rank](Oob& oob) {
    EXPECT_EQ(exchangeValue(oob, rank), ranks);
    EXPECT_EQ(ranks.at(static_cast<std::size_t>(oob.rank())), rank);
  };
}

TEST(ShrinkTo, AllGatherAndAgree) {
  const std::vector<std::string> errors = shrinkAll(5, [](Oob& oob) {
    for (int round = 0; round < 10; ++round) {
      const std::vector<int> all = exchangeValue(oob, 10 * oob.rank() + round);
      for (int rank = 0; rank < 5; ++rank)
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], 10 * rank + round);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// It has left the all-gathers that the others still wait in, or what they wait for between them.
TEST(ShrinkTo, OneRankThatFailsAloneKeepsNobodyWaiting) {
  for (const bool between : {false, true}) {
    const auto start = Clock::now();
    const std::vector<std::string> errors = shrinkAll(4, [between](Oob& oob) {
      exchangeValue(oob, 1);
      if (oob.rank() == 2) throw Error(moecclSystemError, "no memory");
      while (between) oob.check();
      exchangeValue(oob, 2);
    });
    for (std::size_t rank = 0; rank < errors.size(); ++rank)
      EXPECT_EQ(errors[rank],
                rank == 2 ? "no memory"
                          : "rank 2 could not make the communicator of those that are left");
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  }
}

// Whoever is excluded and calls nevertheless learns it, also once the others are done.
TEST(ShrinkTo, TellsWhoIsExcludedHoweverLate) {
  for (const int delay : {0, 200}) {
    runMembers(3, [delay](Member& member, int rank) {
      if (rank != 1) {
        EXPECT_EQ(member.shrink({1}, meeting({0, 2}, rank)), "");
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
      EXPECT_EQ(
          member.shrink({}, [](Oob& oob) { ADD_FAILURE() << oob.rank() << " of " << oob.ranks(); }),
          "rank 1 cannot shrink the communicator: the others have excluded it, or cannot reach it");
    });
  }
}

// One that has not taken part in all attempts joins the newest, whether it comes first or last.
TEST(ShrinkTo, OnceMoreWithWhoWasExcluded) {
  for (const int early : {true, false})
    runMembers(4, [early](Member& member, int rank) {
      if (rank != 1) {
        for (int i = 0; i < 2; ++i) {
          if (early) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          EXPECT_EQ(member.shrink({1}, meeting({0, 2, 3}, rank)), "");
        }
      } else if (!early) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(member.shrink({}, meeting({0, 1, 2, 3}, rank)), "") << "rank " << rank;
    });
}

TEST(ShrinkTo, OnceMoreWithWhoDidNotComeInTime) {
  std::atomic<int> late = 0;
  runMembers(3, [&](Member& member, int rank) {
    if (rank == 2) {
      while (late < 2) std::this_thread::yield();
    } else {
      EXPECT_EQ(member.shrink({}, meeting({}, rank), 100),
                "moecclCommShrink has waited in vain for rank 2: every rank that lives and is not "
                "excluded must call it");
      ++late;
    }
    EXPECT_EQ(member.shrink({}, meeting({0, 1, 2}, rank)), "") << "rank " << rank;
  });
}

// The others wait in what the one has left, wherever they are in it.
TEST(ShrinkTo, OnceMoreWithWhoHasGivenUp) {
  for (const int gathers : {0, 1, 2}) {
    std::atomic<bool> gaveUp = false;
    runMembers(3, [&](Member& member, int rank) {
      int made = 0;
      const Make make = [&](Oob& oob) {
        ++made;
        for (int gather = 0; gather < 2; ++gather) {
          if (rank != 1 && made == 1 && gather == gathers)
            while (!gaveUp) std::this_thread::yield();
          meeting({0, 1, 2}, rank)(oob);
        }
        if (rank != 1 && made == 1 && gathers == 2)
          while (!gaveUp) std::this_thread::yield();
      };
      if (rank == 1) {
        EXPECT_NE(member.shrink({}, make, 500), "");
        gaveUp = true;
      }
      EXPECT_EQ(member.shrink({}, make), "") << "rank " << rank;
      EXPECT_EQ(made, 2) << "rank " << rank;
    });
  }
}

}  // namespace
}  // namespace moeccl

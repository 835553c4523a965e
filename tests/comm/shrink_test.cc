// What ranks that shrink a communicator agree on where one of them cannot make the new one.
#include "src/comm/shrink.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "src/error.h"
#include "src/watch/local_watch.h"

namespace moeccl {
namespace {

using Clock = std::chrono::steady_clock;

// Runs shrinkTo() on threads as ranks; returns what each has thrown.
std::vector<std::string> shrinkAll(int ranks, const std::function<void(Oob&)>& make) {
  static std::uint8_t jobs = 0;
  const Secret secret{std::byte{++jobs}};
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto watch =
          makeLocalWatch(secret, rank, std::vector<std::string>(errors.size(), "here"));
      std::uint32_t attempts = 0;
      std::vector<int> members;
      for (int member = 0; member < ranks; ++member) members.push_back(member);
      try {
        shrinkTo({*watch, 3, members, rank, 60000, &attempts, [] {}}, {},
                 [&](Oob& oob) -> std::unique_ptr<Communicator> {
                   make(oob);
                   return nullptr;
                 });
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
      watch->leave();
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
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
                          : "another rank could not make the communicator of those that are left");
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace moeccl

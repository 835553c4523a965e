// What ranks exchange by a launcher's all-gather, and how they fail together.
#include "src/bootstrap/oob.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>

#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using test::expectFailure;
using test::expectSuccess;
using test::Outcome;
using test::runThreads;

// A launcher whose ranks are threads.
class Launcher {
 public:
  explicit Launcher(int ranks) : barrier_(ranks), sent_(ranks) {}

  struct Rank {
    Launcher* launcher;
    int rank;
    int failsWith = 0;
    int misplacedBy = 0;
  };

  static int allgather(const void* send, void* recv, std::size_t bytes, void* context) {
    const Rank& self = *static_cast<Rank*>(context);
    Launcher& launcher = *self.launcher;
    const auto ranks = static_cast<int>(launcher.sent_.size());
    launcher.sent_[self.rank] = send;
    launcher.barrier_.arrive_and_wait();
    for (int r = 0; r < ranks; ++r)
      std::memcpy(static_cast<char*>(recv) + (r + self.misplacedBy) % ranks * bytes,
                  launcher.sent_[r], bytes);
    launcher.barrier_.arrive_and_wait();
    return self.failsWith;
  }

 private:
  std::barrier<> barrier_;
  std::vector<const void*> sent_;
};

std::vector<Outcome> runRanks(int ranks, const std::function<void(Oob&)>& part) {
  Launcher launcher(ranks);
  return runThreads(ranks, [&](int rank) {
    Launcher::Rank self{&launcher, rank};
    CallbackOob oob({Launcher::allgather, &self}, ranks, rank);
    part(oob);
  });
}

TEST(Oob, ExchangesDifferentSizes) {
  for (int ranks : {1, 2, 5}) {
    expectSuccess(runRanks(ranks, [&](Oob& oob) {
      const std::string mine(static_cast<std::size_t>((oob.rank() * 7) % 5), 'a');
      const std::vector<std::string> all = exchangeText(oob, mine + std::to_string(oob.rank()));
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(all[rank], std::string(static_cast<std::size_t>((rank * 7) % 5), 'a') +
                                 std::to_string(rank));
      for (const std::vector<std::byte>& nothing : exchangeBytes(oob, {}))
        EXPECT_TRUE(nothing.empty());
      std::vector<std::byte> some(oob.rank() == 0 ? 100'000 : 0, std::byte{7});
      const auto parts = exchangeBytes(oob, some);
      EXPECT_EQ(parts[0], std::vector<std::byte>(100'000, std::byte{7}));
      for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(parts[rank].empty());
    }));
  }
}

TEST(Oob, AgreesToGoOn) {
  expectSuccess(runRanks(3, [](Oob& oob) {
    agree(oob, std::nullopt);
    agreeAfter(oob, [] {});
  }));
}

TEST(Oob, AgreesToFail) {
  const std::vector<Outcome> outcomes = runRanks(4, [](Oob& oob) {
    agreeAfter(oob, [&] {
      if (oob.rank() == 1) throw Error(moecclInvalidUsage, "no such device");
      if (oob.rank() == 3) throw std::runtime_error(std::string(2000, 'x'));
    });
  });
  expectFailure(outcomes[0], moecclRemoteError, "rank 1 failed: no such device");
  expectFailure(outcomes[1], moecclInvalidUsage, "no such device");
  expectFailure(outcomes[2], moecclRemoteError, "rank 1 failed: no such device");
  expectFailure(outcomes[3], moecclSystemError, "xxx");
}

TEST(Oob, LongTextsOfOthersAreCut) {
  const std::vector<Outcome> outcomes = runRanks(2, [](Oob& oob) {
    agreeAfter(oob, [&] {
      if (oob.rank() == 0) throw Error(moecclSystemError, std::string(2000, 'x'));
    });
  });
  EXPECT_EQ(outcomes[0].text.size(), 2000u);
  expectFailure(outcomes[1], moecclRemoteError, "rank 0 failed: xxx");
}

TEST(Oob, ACallbacksFailureNamesTheRank) {
  Launcher launcher(2);
  const std::vector<Outcome> outcomes = runThreads(2, [&](int rank) {
    Launcher::Rank self{&launcher, rank, rank == 1 ? 42 : 0};
    CallbackOob oob({Launcher::allgather, &self}, 2, rank);
    exchangeValue(oob, 12345);
  });
  EXPECT_EQ(outcomes[0].result, moecclSuccess);
  expectFailure(outcomes[1], moecclSystemError,
                "oob.allgather returned 42 on rank 1 of 2 (4 bytes per rank)");
}

TEST(Oob, ACallbackOfAnotherRankIsNoticed) {
  Launcher launcher(2);
  for (const Outcome& outcome : runThreads(2, [&](int rank) {
         Launcher::Rank self{&launcher, rank, 0, 1};
         CallbackOob oob({Launcher::allgather, &self}, 2, rank);
         exchangeValue(oob, rank);
       }))
    expectFailure(outcome, moecclInvalidUsage, "at its place");
}

}  // namespace
}  // namespace moeccl

// The launcher-free start among ranks that mean well, or at least hold the id.
#include "src/bootstrap/rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <numeric>
#include <span>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/interfaces.h"
#include "src/bootstrap/rendezvous_id.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using namespace std::chrono_literals;
using test::expectFailure;
using test::expectSuccess;
using test::Outcome;
using test::runThreads;

constexpr std::int64_t kLong = 60'000, kShort = 300;

class Rendezvous : public test::LeaklessTest {};

void expectGathers(Oob& oob, std::size_t bytes) {
  std::vector<unsigned char> mine(bytes), all(bytes * oob.ranks(), 0xee);
  for (std::size_t i = 0; i < bytes; ++i) mine[i] = static_cast<unsigned char>(31 * oob.rank() + i);
  oob.allgather(mine.data(), all.data(), bytes);
  for (int rank = 0; rank < oob.ranks(); ++rank)
    for (std::size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(all[rank * bytes + i], static_cast<unsigned char>(31 * rank + i))
          << "byte " << i << " of rank " << rank << " at rank " << oob.rank();
}

TEST_F(Rendezvous, GathersAnySizeAmongAnyNumberOfRanks) {
  for (int ranks : {1, 2, 3, 7, 16}) {
    const moecclUniqueId id = makeUniqueId();
    expectSuccess(runThreads(ranks, [&](int rank) {
      const std::unique_ptr<Oob> oob = join(id, ranks, rank, kLong);
      EXPECT_EQ(oob->rank(), rank);
      EXPECT_EQ(oob->ranks(), ranks);
      for (std::size_t bytes : {std::size_t{8}, std::size_t{0}, std::size_t{1}, std::size_t{4097},
                                std::size_t{700'001}})
        expectGathers(*oob, bytes);
      const std::vector<std::string> texts = exchangeText(*oob, std::string(rank * 3, 'x'));
      for (int other = 0; other < ranks; ++other)
        EXPECT_EQ(texts[other], std::string(other * 3, 'x'));
    }));
  }
}

TEST_F(Rendezvous, TellsWhereItIsOpen) {
  setLogLevel(LogLevel::info);
  testing::internal::CaptureStderr();
  const moecclUniqueId id = makeUniqueId();
  const std::string text = testing::internal::GetCapturedStderr();
  setLogLevel(LogLevel::none);
  expectSuccess(runThreads(1, [&](int rank) { join(id, 1, rank, kLong); }));
  EXPECT_NE(text.find("a rendezvous is open at "), std::string::npos) << text;
  for (const IpAddress& address : hostAddresses()) {
    const std::string endpoint = endpointText(address, 0);  // "10.0.0.1:0"
    EXPECT_NE(text.find(' ' + endpoint.substr(0, endpoint.size() - 1)), std::string::npos) << text;
  }
}

TEST_F(Rendezvous, ListensOnTheInterfaceThatIsAskedForAlone) {
  const moecclUniqueId id = makeUniqueId("=lo");
  const RendezvousId rendezvous = decodeId(id);
  ASSERT_EQ(rendezvous.addresses.size(), 1U);
  for (const IpAddress& address : hostAddresses()) {
    Socket socket;
    int error = startConnect(address, rendezvous.port, &socket);
    pollfd polled{socket.get(), POLLOUT, 0};
    if (error == 0 && poll(&polled, 1, 5000) == 1) error = connectResult(socket);
    EXPECT_EQ(error == 0, address == rendezvous.addresses.front()) << addressText(address);
  }
  expectSuccess(runThreads(2, [&](int rank) { expectGathers(*join(id, 2, rank, kLong), 8); }));
}

TEST_F(Rendezvous, SaysThatNoInterfaceIsTaken) {
  try {
    makeUniqueId("=nosuch0");
    FAIL() << "it opened a rendezvous";
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("MOECCL_SOCKET_IFNAME is \"=nosuch0\""),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Rendezvous, ServesManyRanks) {
  constexpr int kRanks = 300;
  const moecclUniqueId id = makeUniqueId();
  expectSuccess(runThreads(kRanks, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, kRanks, rank, kLong);
    expectGathers(*oob, 100);
  }));
}

TEST_F(Rendezvous, SeveralAtOnceInOneProcess) {
  std::vector<moecclUniqueId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(makeUniqueId());
  expectSuccess(runThreads(12, [&](int i) {
    const std::unique_ptr<Oob> oob = join(ids[i % 4], 3, i / 4, kLong);
    for (const int which : exchangeValue(*oob, i % 4)) EXPECT_EQ(which, i % 4);
  }));
}

TEST_F(Rendezvous, RanksMayLeaveAtDifferentTimes) {
  const moecclUniqueId id = makeUniqueId();
  expectSuccess(runThreads(4, [&](int rank) {
    std::unique_ptr<Oob> oob = join(id, 4, rank, kLong);
    expectGathers(*oob, 100'000);
    std::this_thread::sleep_for(rank * 30ms);
  }));
}

TEST_F(Rendezvous, WaitsForSlowRanks) {
  const moecclUniqueId id = makeUniqueId();
  expectSuccess(runThreads(3, [&](int rank) {
    std::this_thread::sleep_for(rank * 150ms);
    const std::unique_ptr<Oob> oob = join(id, 3, rank, -1);
    std::this_thread::sleep_for(rank * 50ms);
    expectGathers(*oob, 10);
  }));
}

TEST_F(Rendezvous, TriesAllAddresses) {
  RendezvousId rendezvous = decodeId(makeUniqueId());
  // Documentation addresses, which nobody has, and a loopback one where nobody listens: as of a
  // host whose other networks this rank cannot reach.
  IpAddress nowhere;
  nowhere.bytes = {192, 0, 2, 1};
  IpAddress nowhere6;
  nowhere6.family = AF_INET6;
  nowhere6.bytes = {0x20, 0x01, 0x0d, 0xb8};
  rendezvous.addresses.insert(rendezvous.addresses.begin(), {nowhere, nowhere6});
  const moecclUniqueId id = encodeId(rendezvous);
  const auto start = std::chrono::steady_clock::now();
  expectSuccess(runThreads(3, [&](int rank) { expectGathers(*join(id, 3, rank, kLong), 10); }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

// ------------------------------------------------------------------------------------ errors

TEST_F(Rendezvous, RefusesWhatIsNoId) {
  moecclUniqueId zero{}, text{}, damaged = makeUniqueId({}, {.idleMs = 50});
  std::strcpy(text.internal, "localhost:4242");
  moecclUniqueId cut = damaged;
  std::memset(cut.internal + 60, 0, sizeof cut.internal - 60);
  damaged.internal[20] ^= 1;
  using Case = std::pair<moecclUniqueId, const char*>;
  for (const Case& wrong :
       {Case(zero, "all zero"), {text, "begin"}, {damaged, "checksum"}, {cut, "checksum"}}) {
    const Outcome outcome = test::outcomeOf([&] { join(wrong.first, 2, 0, kShort); });
    expectFailure(outcome, moecclInvalidArgument, "moecclGetUniqueId");
    expectFailure(outcome, moecclInvalidArgument, wrong.second);
  }
}

TEST_F(Rendezvous, RefusesRanksOutOfRange) {
  const moecclUniqueId id = makeUniqueId({}, {.idleMs = 50});
  expectFailure(test::outcomeOf([&] { join(id, 4, 4, kShort); }), moecclInvalidArgument, "[0, 3]");
  expectFailure(test::outcomeOf([&] { join(id, 4, -1, kShort); }), moecclInvalidArgument,
                "rank is -1");
  expectFailure(test::outcomeOf([&] { join(id, 0, 0, kShort); }), moecclInvalidArgument,
                "nRanks is 0");
}

TEST_F(Rendezvous, TellsAllThatRanksDisagreeOnTheirNumber) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(4, [&](int rank) {
    std::this_thread::sleep_for(rank * 50ms);  // rank 3 first hears of it, rank 2 came before
    join(id, rank == 2 ? 5 : 4, rank, 2000);
  });
  for (const Outcome& outcome : outcomes) {
    expectFailure(outcome, moecclInvalidUsage, "ranks disagree on nRanks: rank 2");
    expectFailure(outcome, moecclInvalidUsage, "came with 5, rank 0");
    expectFailure(outcome, moecclInvalidUsage, "with 4");
  }
}

TEST_F(Rendezvous, TellsAllThatTwoCameAsOneRank) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(4, [&](int i) {
    std::this_thread::sleep_for(i * 50ms);
    join(id, 4, i == 2 ? 1 : i, 1000);
  });
  for (const Outcome& outcome : outcomes)
    expectFailure(outcome, moecclInvalidUsage, "two came as rank 1 of 4");
}

TEST_F(Rendezvous, NamesMissingRanksToThoseThatArrived) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(8, [&](int rank) {
    if (rank != 2 && rank != 5) join(id, 8, rank, kShort);
  });
  for (int rank : {0, 1, 3, 4, 6, 7})
    expectFailure(outcomes[rank], moecclTimeout, "ranks 2, 5 of 8 have not arrived within 300 ms");
}

TEST_F(Rendezvous, TellsALateRankWhatHappened) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(2, [&](int rank) {
    std::this_thread::sleep_for(rank * 600ms);
    join(id, 2, rank, kShort);
  });
  for (const Outcome& outcome : outcomes)
    expectFailure(outcome, moecclTimeout, "rank 1 of 2 has not arrived within 300 ms");
}

TEST_F(Rendezvous, NamesRanksThatDoNotTakePart) {
  const moecclUniqueId id = makeUniqueId();
  std::latch others(2);
  const std::vector<Outcome> outcomes = runThreads(3, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, 3, rank, kShort);
    if (rank == 1) return others.wait();
    const Outcome outcome = test::outcomeOf([&] { exchangeValue(*oob, rank); });
    others.count_down();
    throw Error(outcome.result, outcome.text);
  });
  for (int rank : {0, 2})
    expectFailure(outcomes[rank], moecclTimeout, "rank 1 of 3 has not taken part");
}

TEST_F(Rendezvous, NamesARankThatLeavesTooEarly) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(4, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, 4, rank, kLong);
    expectGathers(*oob, 10);
    if (rank == 2) throw Error(moecclNumResults, "left");
    exchangeValue(*oob, rank);
  });
  for (int rank : {0, 1, 3}) {
    expectFailure(outcomes[rank], moecclRemoteError, "rank 2");
    expectFailure(outcomes[rank], moecclRemoteError, "left while the communicator was set up");
  }
}

TEST_F(Rendezvous, TellsThoseThatWaitElsewhereOfARankThatLeaves) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(3, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, 3, rank, kLong);
    exchangeValue(*oob, rank);
    if (rank == 1) throw Error(moecclNumResults, "left");
    for (const TimePoint end = afterMs(kLong); !isPast(end);) oob->check();
  });
  for (int rank : {0, 2}) {
    expectFailure(outcomes[rank], moecclRemoteError, "rank 1");
    expectFailure(outcomes[rank], moecclRemoteError, "left while the communicator was set up");
  }
}

TEST_F(Rendezvous, LetsRanksLeaveThatNeedTheOthersNoMore) {
  const moecclUniqueId id = makeUniqueId();
  for (const Outcome& outcome : runThreads(3, [&](int rank) {
         const std::unique_ptr<Oob> oob = join(id, 3, rank, kLong);
         exchangeValue(*oob, rank);
         if (rank != 1)
           for (const TimePoint end = afterMs(200); !isPast(end);) oob->check();
         oob->finish();
       }))
    EXPECT_EQ(outcome.result, moecclSuccess) << outcome.text;
}

TEST_F(Rendezvous, TellsAllThatRanksExchangeDifferentSizes) {
  const moecclUniqueId id = makeUniqueId();
  for (const Outcome& outcome : runThreads(3, [&](int rank) {
         const std::unique_ptr<Oob> oob = join(id, 3, rank, kLong);
         expectGathers(*oob, rank == 1 ? 100 : 200);
       }))
    expectFailure(outcome, moecclInvalidUsage, "100");
}

TEST_F(Rendezvous, RefusesASecondUseWithoutHarmToTheFirst) {
  const moecclUniqueId id = makeUniqueId();
  std::latch joined(2), refused(2);
  const std::vector<Outcome> outcomes = runThreads(4, [&](int i) {
    if (i >= 2) {
      joined.wait();
      const Outcome outcome = test::outcomeOf([&] { join(id, 2, i - 2, kLong); });
      refused.count_down();
      throw Error(outcome.result, outcome.text);
    }
    const std::unique_ptr<Oob> oob = join(id, 2, i, kLong);
    joined.count_down();
    refused.wait();
    expectGathers(*oob, 1000);
  });
  expectSuccess({outcomes[0], outcomes[1]});
  for (int i : {2, 3}) expectFailure(outcomes[i], moecclInvalidUsage, "serves one communicator");
}

TEST_F(Rendezvous, RefusesASecondUseAfterTheFirst) {
  const moecclUniqueId id = makeUniqueId();
  expectSuccess(runThreads(2, [&](int rank) { join(id, 2, rank, kLong)->finish(); }));
  // The service may still be about to end.
  for (const Outcome& outcome : runThreads(2, [&](int rank) { join(id, 2, rank, kLong); }))
    EXPECT_TRUE(outcome.result == moecclInvalidUsage || outcome.result == moecclSystemError)
        << outcome.text;
  const auto start = std::chrono::steady_clock::now();
  const Outcome later = test::outcomeOf([&] { join(id, 2, 0, kLong); });
  expectFailure(later, moecclSystemError, "the id was used before");
  expectFailure(later, moecclSystemError, "Connection refused");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_F(Rendezvous, EndsWhenNobodyComes) {
  makeUniqueId({}, {.idleMs = 50});
  // The fixture waits for the thread and its descriptors to go.
}

TEST_F(Rendezvous, GetsByOnFewDescriptors) {
  // 40 connections and their service where 60 descriptors are allowed at first.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 60;
  const moecclUniqueId id = makeUniqueId();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::vector<Outcome> outcomes =
      runThreads(40, [&](int rank) { expectGathers(*join(id, 40, rank, kLong), 10); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  expectSuccess(outcomes);
}

// ---------------------------------------------------------------------------------------- ids

TEST(RendezvousId, KeepsWhatItSays) {
  RendezvousId in;
  in.port = 65'535;
  for (std::size_t i = 0; i < in.secret.size(); ++i) in.secret[i] = std::byte(i + 1);
  IpAddress four, six;
  four.bytes = {10, 1, 2, 3};
  six.family = AF_INET6;
  std::iota(six.bytes.begin(), six.bytes.end(), std::uint8_t{1});
  in.addresses = {four, six};
  const RendezvousId out = decodeId(encodeId(in));
  EXPECT_EQ(out.port, in.port);
  EXPECT_EQ(out.secret, in.secret);
  EXPECT_EQ(out.addresses, in.addresses);
}

TEST(RendezvousId, KeepsTheLastOfTooManyAddresses) {
  RendezvousId in;
  for (int i = 0; i < 40; ++i) {
    IpAddress address;
    if (i % 5 == 3) address.family = AF_INET6;
    address.bytes = {10, 0, 0, static_cast<std::uint8_t>(i)};
    in.addresses.push_back(address);
  }
  const RendezvousId out = decodeId(encodeId(in));
  EXPECT_GE(out.addresses.size(), 5u);
  EXPECT_EQ(out.addresses.front(), in.addresses.front());
  EXPECT_EQ(out.addresses.back(), in.addresses.back());
}

TEST(RendezvousId, IsNeverTheSame) {
  const moecclUniqueId a = makeUniqueId({}, {.idleMs = 1}), b = makeUniqueId({}, {.idleMs = 1});
  EXPECT_NE(decodeId(a).secret, decodeId(b).secret);
}

}  // namespace
}  // namespace moeccl

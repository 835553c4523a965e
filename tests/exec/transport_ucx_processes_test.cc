// Ranks as processes. The program itself, their parent, never starts UCX.
#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "src/exec/ucx_transport.h"
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

std::unique_ptr<Transport> ucxTransport(int rank, int ranks) {
  return makeUcxTransport(rank, ranks);
}

// As in a node, where it opens no port.
std::unique_ptr<Transport> sharedMemory(int rank, int ranks) {
  return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory});
}

// Each rank's process sets its environment before it starts UCX.
Kind withVariables(std::initializer_list<std::pair<const char*, const char*>> variables) {
  const std::vector<std::pair<const char*, const char*>> list(variables);
  return {"WithVariables", true, [list](int rank, int ranks) {
            for (const auto& [name, value] : list) setenv(name, value, 1);
            return std::make_unique<UcxTransport>(rank, ranks);
          }};
}

// Over TCP, and with all that is done differently for other machines.
std::unique_ptr<Transport> asFarAway(int rank, int ranks) {
  if (rank < 0 || rank >= ranks) return makeUcxTransport(rank, ranks);
  setenv("UCX_TLS", "tcp", 1);
  return std::make_unique<UcxTransport>(rank, ranks, UcxOptions{}, true);
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         testing::Values(Kind{"Processes", true, &ucxTransport},
                                         Kind{"SharedMemory", true, &sharedMemory},
                                         Kind{"FarAway", true, &asFarAway}),
                         nameOf);

// How rank 0 reaches rank 1, in UCX's words: "#  lane[0]: 4:posix/memory.0 md[3] ...".
void expectConnection(const Kind& kind, const std::function<void(const std::string&)>& check) {
  EXPECT_EQ(runJob(kind, 2,
                   [&](Member& me) {
                     if (me.rank() > 0) return;
                     auto& transport = dynamic_cast<UcxTransport&>(me.transport);
                     check(transport.describeConnection(1));
                   }),
            "");
}

bool mentions(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

TEST(UcxSettings, RanksOfANodeShareMemoryAndWatchEachOther) {
  expectConnection(withVariables({}), [](const std::string& connection) {
    EXPECT_TRUE(mentions(connection, "posix/") || mentions(connection, "sysv/")) << connection;
    EXPECT_FALSE(mentions(connection, "tcp/")) << connection;
    EXPECT_TRUE(mentions(connection, "cma/")) << connection;
    EXPECT_TRUE(mentions(connection, "keepalive")) << connection;
  });
}

TEST(UcxSettings, TheUsersVariablesWin) {
  expectConnection(withVariables({{"UCX_TLS", "tcp"}}), [](const std::string& connection) {
    EXPECT_TRUE(mentions(connection, "tcp/")) << connection;
    EXPECT_FALSE(mentions(connection, "posix/") || mentions(connection, "sysv/")) << connection;
  });
  expectConnection(withVariables({{"UCX_MM_ERROR_HANDLING", "n"}}),
                   [](const std::string& connection) {
                     EXPECT_TRUE(mentions(connection, "tcp/")) << connection;
                   });
  expectConnection(withVariables({{"UCX_CMA_MEMORY_INVALIDATE", "n"}}),
                   [](const std::string& connection) {
                     EXPECT_FALSE(mentions(connection, "cma/")) << connection;
                   });
}

// A rendezvous of the sender and the receiver, or none: which shows when there is no receive yet.
TEST(UcxTransport, LargeMessagesWaitForTheirReceiveInTheNodeOnly) {
  const auto send = [](bool farAway) {
    return [farAway](Member& me) {
      const Tag tag = tagOf(0, 1), last = tagOf(0, 2);
      std::vector<std::uint8_t> data = pattern(1, 1 << 20);
      Probe large, small;
      if (me.rank() == 0) {
        me.transport.send(1, tag, data.data(), data.size(), &large);
        EXPECT_EQ(finish(me.transport, {&large}, farAway ? 20000 : 200), farAway);
        me.transport.send(1, last, nullptr, 0, &small);
        EXPECT_TRUE(finish(me.transport, {&large, &small}));
      } else {
        me.transport.recv(0, last, nullptr, 0, &small);
        ASSERT_TRUE(finish(me.transport, {&small}));
        std::vector<std::uint8_t> got(data.size());
        me.transport.recv(0, tag, got.data(), got.size(), &large);
        ASSERT_TRUE(finish(me.transport, {&large}));
        EXPECT_EQ(got, data);
      }
    };
  };
  EXPECT_EQ(runJob({"Processes", true, &ucxTransport}, 2, send(false)), "");
  EXPECT_EQ(runJob({"FarAway", true, &asFarAway}, 2, send(true)), "");
}

TEST(UcxTransport, ManyRanksCloseTogether) {
  for (int ranks : {13, 16})
    EXPECT_EQ(runJob(withVariables({}), ranks,
                     [](Member& me) {
                       const int next = (me.rank() + 1) % me.ranks();
                       const int before = (me.rank() + me.ranks() - 1) % me.ranks();
                       std::vector<std::uint8_t> out = pattern(me.rank(), 10000), in(out.size());
                       Probe send, recv;
                       me.transport.recv(before, tagOf(before, 1), in.data(), in.size(), &recv);
                       me.transport.send(next, tagOf(me.rank(), 1), out.data(), out.size(), &send);
                       ASSERT_TRUE(finish(me.transport, {&send, &recv}));
                       EXPECT_EQ(in, pattern(before, 10000));
                     }),
              "");
}

}  // namespace
}  // namespace moeccl::test

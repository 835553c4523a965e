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

std::unique_ptr<Transport> overTcp(int rank, int ranks) {
  setenv("UCX_TLS", "tcp", 1);
  return makeUcxTransport(rank, ranks);
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         testing::Values(Kind{"Processes", true, &ucxTransport},
                                         Kind{"SharedMemory", true, &sharedMemory},
                                         Kind{"Tcp", true, &overTcp, Buffered::small, false}),
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

// Ranks as processes. The program itself, their parent, never starts UCX.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>
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

// As where the kernel lets no process read another's memory (containers, seccomp).
std::unique_ptr<Transport> inPieces(int rank, int ranks) {
  setenv("UCX_TLS", "self,posix", 1);
  return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory});
}

std::unique_ptr<Transport> overTcp(int rank, int ranks) {
  setenv("UCX_TLS", "tcp", 1);
  return makeUcxTransport(rank, ranks);
}

INSTANTIATE_TEST_SUITE_P(
    Ucx, TransportContract,
    testing::Values(Kind{"Processes", true, &ucxTransport, Buffered::small, true, true},
                    Kind{"SharedMemory", true, &sharedMemory, Buffered::small, true, true},
                    Kind{"Pieces", true, &inPieces},
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
    EXPECT_TRUE(mentions(connection, "posix/")) << connection;
    EXPECT_FALSE(mentions(connection, "tcp/")) << connection;
    EXPECT_TRUE(mentions(connection, "cma/")) << connection;
    EXPECT_TRUE(mentions(connection, "keepalive")) << connection;
    EXPECT_TRUE(mentions(connection, "<egr/bcopy>..8256..<rndv>..(inf)")) << connection;
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

// The segments of System V's shared memory that this process has made.
int segments() {
  std::ifstream file("/proc/sysvipc/shm");
  std::string line;
  std::getline(file, line);
  int count = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    long key, id, mode, bytes, creator = 0;
    fields >> key >> id >> mode >> bytes >> creator;
    count += creator == getpid();
  }
  return count;
}

// Their whole group might read and write it.
TEST(UcxSettings, RanksMakeNoMemoryForOthers) {
  for (const char* transports : {"", "shm", "sm,self", "mm,self", "all", "^tcp"}) {
    const Kind kind{"SharedMemory", true, [transports](int rank, int ranks) {
                      if (*transports != '\0') setenv("UCX_TLS", transports, 1);
                      return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory});
                    }};
    EXPECT_EQ(runJob(kind, 2,
                     [](Member& me) {
                       EXPECT_EQ(segments(), 0);
                       EXPECT_EQ(me.ranks(), 2);
                     }),
              "")
        << transports;
  }
  expectConnection(withVariables({{"UCX_TLS", "self,sysv"}}), [](const std::string& connection) {
    EXPECT_TRUE(mentions(connection, "sysv/")) << connection;
  });
}

// Sends to every Unix datagram socket of this process that others may send to.
void ringAll(std::string_view what) {
  const FileDescriptor sender(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_un name{};
    socklen_t bytes = sizeof name;
    if (getsockname(std::stoi(entry.path().filename()), reinterpret_cast<sockaddr*>(&name),
                    &bytes) != 0 ||
        name.sun_family != AF_UNIX || bytes <= offsetof(sockaddr_un, sun_path))
      continue;
    sendto(sender.get(), what.data(), what.size(), 0, reinterpret_cast<const sockaddr*>(&name),
           bytes);
  }
}

TEST(UcxTransport, StrangersDatagramsDisturbNobody) {
  EXPECT_EQ(runJob(Kind{"SharedMemory", true, &sharedMemory}, 2,
                   [](Member& me) {
                     const int other = 1 - me.rank();
                     for (std::uint32_t call = 0; call < 20; ++call) {
                       for (const std::string_view what : {"", "x", "a longer one"}) ringAll(what);
                       me.transport.progress();
                       me.transport.wait(1);
                       int in = -1;
                       const int out = me.rank() + 10;
                       Probe send, recv;
                       me.transport.recv(other, tagOf(other, call), &in, sizeof in, &recv);
                       me.transport.send(other, tagOf(me.rank(), call), &out, sizeof out, &send);
                       ASSERT_TRUE(finish(me.transport, {&send, &recv}));
                       ASSERT_EQ(in, other + 10);
                     }
                   }),
            "");
}

// They may ring for ever, but not wake a rank as often.
TEST(UcxTransport, StrangersKeepNobodyAwake) {
  EXPECT_EQ(runJob(Kind{"SharedMemory", true, &sharedMemory}, 2,
                   [](Member& me) {
                     std::atomic<bool> over = false;
                     std::thread stranger([&] {
                       while (!over) {
                         ringAll("x");
                         std::this_thread::sleep_for(std::chrono::microseconds(500));
                       }
                     });
                     const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
                     int wakes = 0;
                     for (; std::chrono::steady_clock::now() < end; ++wakes) {
                       me.transport.progress();
                       me.transport.wait(100);
                     }
                     over = true;
                     stranger.join();
                     EXPECT_LT(wakes, 2 * 100);
                   }),
            "");
}

TEST(UcxTransport, TooFewDescriptorsAreAnError) {
  const Kind kind{"SharedMemory", true, [](int rank, int ranks) -> std::unique_ptr<Transport> {
                    rlimit limit{20, 20};
                    setrlimit(RLIMIT_NOFILE, &limit);
                    std::string said;
                    try {
                      makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory});
                    } catch (const std::runtime_error& error) {
                      said = error.what();
                    }
                    EXPECT_NE(said.find("may open 20 files (ulimit -n)"), said.npos) << said;
                    return makeLoopbackTransport(0, 1);
                  }};
  EXPECT_EQ(runJob(kind, 1, [](Member&) {}), "");
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

// Over TCP sockets: ranks as processes and as threads, with one connection of each pair and with
// several, with memory for what comes unasked and with next to none.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "src/exec/tcp.h"
#include "tests/exec/transport_contract.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

Kind tcp(const char* name, bool processes, std::size_t memory, int connections, Buffered buffered) {
  return {name, processes,
          [=](int rank, int ranks) {
            TcpOptions options;
            options.secret = {std::byte{1}, std::byte{2}};
            options.oneHost = true;
            options.memory = memory;
            options.connections = connections;
            return makeTcpTransport(rank, ranks, options);
          },
          buffered};
}

INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract,
                         testing::Values(tcp("Threads", false, kTcpMemory, 1, Buffered::small),
                                         tcp("Processes", true, kTcpMemory, 1, Buffered::small),
                                         tcp("ProcessesBySeveralConnections", true, kTcpMemory, 3,
                                             Buffered::small),
                                         tcp("ProcessesWithoutMemory", true, 0, 1, Buffered::none),
                                         tcp("ThreadsWithoutMemory", false, 0, 4, Buffered::none)),
                         nameOf);

// Sends to the other of two ranks where no descriptor is left for a connection; how that ended.
TransferStatus sendWithoutDescriptors(std::string* error) {
  std::vector<std::unique_ptr<PollableTransport>> transports;
  std::vector<Transport::Address> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    TcpOptions options;
    options.oneHost = true;
    transports.push_back(makeTcpTransport(rank, 2, options));
    addresses.push_back(transports.back()->address());
  }
  for (const auto& transport : transports) transport->connect(addresses);

  const int free = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  close(free);
  const rlimit none{static_cast<rlim_t>(free), static_cast<rlim_t>(free)};
  if (setrlimit(RLIMIT_NOFILE, &none) != 0) return TransferStatus::ok;
  struct Send : Transfer {
    bool isDone = false;
    TransferStatus status = TransferStatus::ok;
  } send;
  send.done = [](Transfer* self, TransferStatus status, std::size_t) {
    static_cast<Send*>(self)->isDone = true;
    static_cast<Send*>(self)->status = status;
  };
  const int value = 7;
  transports[0]->send(1, 1, &value, sizeof value, &send);
  for (int i = 0; i < 1000 && !send.isDone; ++i) transports[0]->progress();
  *error = transports[0]->lastError();
  return send.status;
}

// The peer is innocent: the transfer has failed, the peer is not unreachable.
TEST(TcpTransport, ARankWithoutDescriptorsBlamesItself) {
#ifdef MOECCL_SANITIZED
  GTEST_SKIP() << "a sanitizer without descriptors takes all memory for unreadable";
#endif
  // In a process of its own, which may lower its hard limit.
  const pid_t child = fork();
  if (child == 0) {
    std::string error;
    const bool right = sendWithoutDescriptors(&error) == TransferStatus::failed &&
                       error.find("Too many open files") != error.npos;
    if (!right) std::fprintf(stderr, "last error: %s\n", error.c_str());
    std::_Exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace moeccl::test

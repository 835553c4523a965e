// Over TCP sockets: ranks as processes and as threads, with one connection of each pair and with
// several, with memory for what comes unasked and with next to none.
#include "src/exec/tcp.h"
#include "tests/exec/transport_contract.h"

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

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportContract,
    testing::Values(tcp("Threads", false, kTcpMemory, 1, Buffered::small),
                    tcp("Processes", true, kTcpMemory, 1, Buffered::small),
                    tcp("SeveralConnections", true, kTcpMemory, 3, Buffered::small),
                    tcp("WithoutMemory", true, 0, 1, Buffered::none),
                    tcp("WithoutMemorySeveralConnections", false, 0, 4, Buffered::none)),
    nameOf);

}  // namespace
}  // namespace moeccl::test

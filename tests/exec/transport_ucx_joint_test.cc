// Nodes of two ranks: shared memory inside, TCP between them.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "src/exec/tcp.h"
#include "src/exec/ucx_settings.h"
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

std::unique_ptr<Transport> joint(int rank, int ranks, int perNode) {
  std::vector<int> members;
  for (int other = 0; other < ranks; ++other)
    if (other / perNode == rank / perNode) members.push_back(other);
  TcpOptions options;
  options.secret = {std::byte{1}};
  options.oneHost = true;
  return makeJointTransport(rank, ranks, members, options);
}

std::unique_ptr<Transport> nodesOfTwo(int rank, int ranks) { return joint(rank, ranks, 2); }
std::unique_ptr<Transport> nodesOfOne(int rank, int ranks) { return joint(rank, ranks, 1); }
std::unique_ptr<Transport> nodesOfThree(int rank, int ranks) { return joint(rank, ranks, 3); }

// UCX's TCP port takes messages from anybody.
TEST(UcxReach, TcpIsOpenedOnlyWhereItIsAskedFor) {
  const char* const before = std::getenv("UCX_TLS");
  const std::string kept = before == nullptr ? "" : before;
  for (const char* transports : {"tcp,self", "all", "tcp,shm,self", "^sysv", "tcp"})
    for (UcxReach reach : {UcxReach::sharedMemory, UcxReach::noTcp}) {
      setenv("UCX_TLS", transports, 1);
      bool tcp = true;
      readUcxConfig(reach, &tcp);
      EXPECT_FALSE(tcp) << transports;
    }
  setenv("UCX_TLS", "tcp,self", 1);
  bool tcp = false;
  readUcxConfig(UcxReach::everything, &tcp);
  EXPECT_TRUE(tcp);
  if (before == nullptr)
    unsetenv("UCX_TLS");
  else
    setenv("UCX_TLS", kept.c_str(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Ucx, TransportContract,
    testing::Values(Kind{"NodesOfOne", true, &nodesOfOne},
                    Kind{"NodesOfTwo", true, &nodesOfTwo, Buffered::small, true, true},
                    Kind{"NodesOfThree", true, &nodesOfThree, Buffered::small, true, true}),
    nameOf);

}  // namespace
}  // namespace moeccl::test

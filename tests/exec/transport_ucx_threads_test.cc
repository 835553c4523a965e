// Several UCX transports as threads of one process.
#include "src/exec/ucx.h"
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         testing::Values(Kind{
                             "Threads", false,
                             [](int rank, int ranks) { return makeUcxTransport(rank, ranks); },
                             Buffered::small, true, true}),
                         nameOf);

}  // namespace
}  // namespace moeccl::test

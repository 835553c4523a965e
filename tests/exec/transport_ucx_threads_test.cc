// Several UCX transports as threads of one process.
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         testing::Values(Kind{"Threads", false, &makeUcxTransport}), nameOf);

}  // namespace
}  // namespace moeccl::test

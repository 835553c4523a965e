// Ranks as processes. The program itself, their parent, never starts UCX.
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract,
                         testing::Values(Kind{"Processes", true, &makeUcxTransport}), nameOf);

}  // namespace
}  // namespace moeccl::test

// The loopback keeps the contract of transports.
#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

Kind loopback(const char* name, std::size_t eagerBelow, Buffered buffered) {
  const auto make = [eagerBelow](int rank, int ranks) {
    return makeLoopbackTransport(rank, ranks, eagerBelow);
  };
  return {name, false, make, buffered};
}

INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract,
                         testing::Values(loopback("ByDefault", kLoopbackEagerBelow,
                                                  Buffered::small),
                                         loopback("Rendezvous", 0, Buffered::none),
                                         loopback("Eager", SIZE_MAX, Buffered::all)),
                         nameOf);

}  // namespace
}  // namespace moeccl::test

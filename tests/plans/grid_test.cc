// What grid collectives promise about one another.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

std::string textOf(Collective collective, std::string_view algorithm, const Topology& topology,
                   const Parameters& parameters) {
  std::ostringstream text;
  const std::vector<Plan> plans =
      *plansOf(*findAlgorithm(collective, algorithm), topology, parameters);
  for (int rank = 0; rank < topology.ranks(); ++rank)
    printText(text, plans[static_cast<std::size_t>(rank)], rank);
  return text.str();
}

// So S2 does what S1 does where MP groups have one rank.
TEST(GridCollectives, OfSingleMpRanksAreDispatchAndCombine) {
  for (const auto& [ep, esp] : {std::pair{8, 1}, {4, 2}, {2, 4}, {1, 8}})
    for (const bool espConsecutive : {true, false}) {
      Parameters parameters;
      parameters.grid = {1, ep, esp, espConsecutive};
      for (const Topology& topology : {Topology::even(2, 4), Topology::even(4, 2)}) {
        const auto expectSame = [&](Collective ofMp, std::string_view algorithm, Collective alone,
                                    std::string_view sameAlgorithm) {
          EXPECT_EQ(textOf(ofMp, algorithm, topology, parameters),
                    textOf(alone, sameAlgorithm, topology, parameters))
              << algorithm << " " << nameOf(topology) << " " << nameOf(parameters);
        };
        expectSame(Collective::combineAllGather, "sequential", Collective::combine, "dedup");
        expectSame(Collective::splitDispatch, "dedup", Collective::dispatch, "dedup");
        expectSame(Collective::splitDispatch, "flat", Collective::dispatch, "flat");
      }
    }
}

}  // namespace
}  // namespace moeccl::testing

// Parm's Algorithm 1, by hand.
#include <gtest/gtest.h>

#include "perf/perf/layer_parm.h"

namespace moeccl::perf::layers {
namespace {

const ParmLines kLines = {[](double bytes) { return 3 + 1e-3 * bytes; },
                          [](double bytes) { return 5 + 2e-3 * bytes; },
                          [](double bytes) { return 7 + 4e-3 * bytes; }};
// x = 64 * 16 elements; y = k f x N_ESP = 4096. N_MP = N_ESP = 2.
const Layer kLayer = {{2, 2, 2, moecclOrderEspEp}, 4, 16, 16, 32, 4, 2, 1.0};
constexpr double kGather = 3 + 1e-3 * 512 * 4;

TEST(LayerParm, Corrected) {
  const ParmTimes times = parmTimes(kLayer, kLines, false);
  const double exchange = 5 + 2e-3 * 1024 * 4;
  EXPECT_DOUBLE_EQ(times.s1, 2 * exchange + kGather);
  EXPECT_DOUBLE_EQ(times.s2, exchange + 7 + 4e-3 * 2048 * 4);
}

TEST(LayerParm, AsPublishedYIsMTimesAsLargeAndAllOfItOverlapped) {
  const ParmTimes times = parmTimes(kLayer, kLines, true);
  const double exchange = 5 + 2e-3 * 1024 * 16 * 4;
  EXPECT_DOUBLE_EQ(times.s1, 2 * exchange + kGather);
  EXPECT_DOUBLE_EQ(times.s2, exchange + 7 + 4e-3 * 4096 * 16 * 4);
}

}  // namespace
}  // namespace moeccl::perf::layers

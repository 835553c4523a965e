// No pass of a schedule sends more bytes than its exchanges need: bounds, of a rank's send buffers.
#include <gtest/gtest.h>

#include "src/model/layer_shape.h"
#include "src/model/schedule_terms.h"

namespace moeccl {
namespace {

enum class Kind : std::uint8_t { capacity, dropless, residual };

struct Bound {
  int nMp, nEp, nEsp;
  Kind kind;
  moecclSchedule_t schedule;
  double forward, backward;
};

// 480 tokens of an MP group, M = 32, E = 24, k = 2, f = 1.5; of a dropless layer a row for each
// choice; a residual branch of 16 hidden elements.
const Bound kBounds[] = {
    {1, 8, 1, Kind::capacity, moecclScheduleBaseline, 368640, 368640},
    {1, 8, 1, Kind::capacity, moecclScheduleS1, 368640, 368640},
    {1, 8, 1, Kind::capacity, moecclScheduleS2, 368640, 368640},
    {1, 8, 1, Kind::dropless, moecclScheduleBaseline, 245952, 245760},
    {1, 8, 1, Kind::dropless, moecclScheduleS1, 245952, 245760},
    {1, 8, 1, Kind::residual, moecclScheduleBaseline, 368640, 368640},
    {1, 8, 1, Kind::residual, moecclScheduleS1, 368640, 368640},
    {1, 8, 1, Kind::residual, moecclScheduleS2, 368640, 368640},
    {2, 8, 1, Kind::capacity, moecclScheduleBaseline, 368640, 368640},
    {2, 8, 1, Kind::capacity, moecclScheduleS1, 215808, 218112},
    {2, 8, 1, Kind::capacity, moecclScheduleS2, 276480, 276480},
    {2, 8, 1, Kind::dropless, moecclScheduleBaseline, 245952, 245760},
    {2, 8, 1, Kind::dropless, moecclScheduleS1, 154560, 156672},
    {2, 8, 1, Kind::residual, moecclScheduleBaseline, 399360, 403648},
    {2, 8, 1, Kind::residual, moecclScheduleS1, 215808, 222400},
    {2, 8, 1, Kind::residual, moecclScheduleS2, 307200, 311488},
    {2, 4, 2, Kind::capacity, moecclScheduleBaseline, 983040, 921600},
    {2, 4, 2, Kind::capacity, moecclScheduleS1, 307968, 310272},
    {2, 4, 2, Kind::capacity, moecclScheduleS2, 368640, 368640},
    {2, 4, 2, Kind::dropless, moecclScheduleBaseline, 676224, 737280},
    {2, 4, 2, Kind::dropless, moecclScheduleS1, 400512, 402432},
    {2, 4, 2, Kind::residual, moecclScheduleBaseline, 1013760, 956608},
    {2, 4, 2, Kind::residual, moecclScheduleS1, 307968, 314560},
    {2, 4, 2, Kind::residual, moecclScheduleS2, 399360, 403648},
    {4, 2, 4, Kind::capacity, moecclScheduleBaseline, 1720320, 1290240},
    {4, 2, 4, Kind::capacity, moecclScheduleS1, 246528, 248832},
    {4, 2, 4, Kind::capacity, moecclScheduleS2, 368640, 368640},
    {4, 2, 4, Kind::dropless, moecclScheduleBaseline, 1168128, 1228800},
    {4, 2, 4, Kind::dropless, moecclScheduleS1, 323712, 325632},
    {4, 2, 4, Kind::residual, moecclScheduleBaseline, 1735680, 1309888},
    {4, 2, 4, Kind::residual, moecclScheduleS1, 246528, 253120},
    {4, 2, 4, Kind::residual, moecclScheduleS2, 384000, 388288},
    {8, 4, 2, Kind::capacity, moecclScheduleBaseline, 1044480, 983040},
    {8, 4, 2, Kind::capacity, moecclScheduleS1, 82176, 84480},
    {8, 4, 2, Kind::capacity, moecclScheduleS2, 245760, 245760},
    {8, 4, 2, Kind::capacity, moecclSchedulePpMoe, 61440, 65280},
    {8, 4, 2, Kind::dropless, moecclScheduleBaseline, 676224, 737280},
    {8, 4, 2, Kind::dropless, moecclScheduleS1, 100992, 102912},
    {8, 4, 2, Kind::residual, moecclScheduleBaseline, 1052160, 995008},
    {8, 4, 2, Kind::residual, moecclScheduleS1, 82176, 88768},
    {8, 4, 2, Kind::residual, moecclScheduleS2, 253440, 257728},
    {8, 4, 2, Kind::residual, moecclSchedulePpMoe, 61440, 69568},
    {1, 2, 4, Kind::capacity, moecclScheduleBaseline, 1720320, 1290240},
    {1, 2, 4, Kind::capacity, moecclScheduleS1, 921600, 921600},
    {1, 2, 4, Kind::capacity, moecclScheduleS2, 921600, 921600},
    {1, 2, 4, Kind::dropless, moecclScheduleBaseline, 1168128, 1228800},
    {1, 2, 4, Kind::dropless, moecclScheduleS1, 1229184, 1228800},
    {1, 2, 4, Kind::residual, moecclScheduleBaseline, 1720320, 1290240},
    {1, 2, 4, Kind::residual, moecclScheduleS1, 921600, 921600},
    {1, 2, 4, Kind::residual, moecclScheduleS2, 921600, 921600},
    {2, 3, 2, Kind::capacity, moecclScheduleBaseline, 983040, 921600},
    {2, 3, 2, Kind::capacity, moecclScheduleS1, 307968, 310272},
    {2, 3, 2, Kind::capacity, moecclScheduleS2, 368640, 368640},
    {2, 3, 2, Kind::dropless, moecclScheduleBaseline, 676224, 737280},
    {2, 3, 2, Kind::dropless, moecclScheduleS1, 400512, 402432},
    {2, 3, 2, Kind::residual, moecclScheduleBaseline, 1013760, 956608},
    {2, 3, 2, Kind::residual, moecclScheduleS1, 307968, 314560},
    {2, 3, 2, Kind::residual, moecclScheduleS2, 399360, 403648},
};

moecclMoeConfig_t configOf(Kind kind) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = 480;
  config.embedding = 32;
  config.hidden = 64;
  config.experts = 24;
  config.topK = 2;
  config.training = 1;
  config.dropless = kind == Kind::dropless ? 1 : 0;
  config.capacityFactor = kind == Kind::dropless ? 0 : 1.5;
  config.residual = kind == Kind::residual ? 16 : 0;
  return config;
}

double sent(const LayerShape& shape, Pass pass) {
  double bytes = 0;
  for (const Exchange& exchange : termsOf(shape, pass).exchanges)
    bytes += exchange.bytes * exchange.times;
  return bytes;
}

TEST(ScheduleBytes, AreWithinTheirBounds) {
  for (const Bound& bound : kBounds) {
    SCOPED_TRACE(testing::Message()
                 << "MP " << bound.nMp << ", EP " << bound.nEp << ", ESP " << bound.nEsp
                 << ", kind " << static_cast<int>(bound.kind) << ", schedule " << bound.schedule);
    const LayerShape shape = layerShape(configOf(bound.kind), bound.schedule,
                                        {bound.nMp, bound.nEp, bound.nEsp, moecclOrderEspEp});
    EXPECT_LE(sent(shape, Pass::forward), bound.forward);
    EXPECT_LE(sent(shape, Pass::backward), bound.backward);
    EXPECT_GT(sent(shape, Pass::forward), 0);
  }
}

}  // namespace
}  // namespace moeccl

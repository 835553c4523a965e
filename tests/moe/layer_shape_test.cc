// The numbers that follow from a config, by hand.
#include "src/model/layer_shape.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace moeccl {
namespace {

struct Case {
  std::int64_t tokens, experts, choices;
  double factor;
  std::int64_t groups;
  int nMp;
  std::int64_t padded, capacity;
};

TEST(LayerShape, PaddingAndCapacity) {
  const Case cases[] = {
      {24, 4, 2, 1.0, 0, 1, 24, 12},
      {24, 4, 2, 1.0, 0, 2, 24, 12},
      {25, 4, 2, 1.0, 0, 2, 26, 14},  // 12.5 -> 13 -> a multiple of 2
      {25, 4, 2, 1.0, 3, 2, 30, 18},  // both padded to multiples of lcm(3, 2)
      {25, 4, 2, 1.0, 1, 2, 26, 14},  // one group still splits in parts
      {24, 4, 2, 1e-9, 8, 2, 24, 8},  // a place per group at least
      {24, 4, 2, 1e9, 0, 2, 24, 24},  // no more places than tokens
      {24, 4, 4, 3.0, 0, 2, 24, 24},
      {0, 4, 2, 1.0, 0, 2, 0, 0},
      {1, 4, 1, 1.0, 0, 3, 3, 3},
      {50, 5, 1, 1.1, 0, 1, 50, 11},    // in double 11.000000000000002
      {100, 8, 3, 0.4, 0, 1, 100, 15},  // in double 15.000000000000002
      {4'000'000'000, 2, 1, 1.0, 0, 4, 4'000'000'000, 2'000'000'000},
  };
  for (const Case& c : cases) {
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = c.tokens;
    config.embedding = config.hidden = 8;
    config.experts = c.experts;
    config.topK = c.choices;
    config.capacityFactor = c.factor;
    config.capacityGroups = c.groups;
    const LayerShape shape =
        layerShape(config, moecclScheduleBaseline, {c.nMp, 1, 1, moecclOrderEspEp});
    SCOPED_TRACE(testing::Message() << c.tokens << " tokens, factor " << c.factor);
    EXPECT_EQ(shape.paddedTokens(), c.padded);
    EXPECT_EQ(shape.capacity(), c.capacity);
    EXPECT_EQ(shape.groups, c.groups == 0 ? c.nMp : c.groups);
    EXPECT_EQ(shape.partTokens * c.nMp, c.padded);
  }
}

TEST(LayerShape, CountsOfElementsDoNotOverflow) {
  EXPECT_EQ(elementCount({}), 1);
  EXPECT_EQ(elementCount({3, 5, 7}), 105);
  EXPECT_EQ(elementCount({1ll << 40, 1ll << 19}), 1ll << 59);
  EXPECT_EQ(elementCount({1ll << 40, 1ll << 40, 0}), 0);
  EXPECT_THROW(elementCount({1ll << 40, 1ll << 20}), Error);
  EXPECT_THROW(elementCount({INT64_MAX, INT64_MAX}), Error);
}

}  // namespace
}  // namespace moeccl

#include "kernels/ranking.h"

#include <gtest/gtest.h>

namespace moeccl {
namespace {

// Counters of ten thousand experts in a batch of half a million tokens.
TEST(Ranking, CountersDoNotOverflow) {
  const Entries entries = entriesOf(nullptr, nullptr, 1 << 19, 8, 10000, 1 << 19, 1);
  EXPECT_EQ(entries.chunks(), 16384);
  EXPECT_EQ(entries.counter(16383, 9999), 10000LL * 16384 - 1);
  EXPECT_EQ(
      entriesOf(nullptr, nullptr, std::int64_t{1} << 40, 8, 1, std::int64_t{1} << 40, 1).chunks(),
      std::int64_t{1} << 35);
}

}  // namespace
}  // namespace moeccl

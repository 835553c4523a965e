// Which tokens a part of a batch has, row by row.
#include <gtest/gtest.h>

#include <random>

#include "kernels/gates/token_rows.h"

namespace moeccl::gates {
namespace {

// Wherever a part begins and ends, and whatever sequences it cuts.
TEST(TokenRows, RowsOfTokensAreWholeAndInOneSection) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Config config{};
    config.kind = Kind::sigmoid;
    config.batchTokens = random() % 300;
    config.sequenceTokens = random() % 3 == 0 ? 0 : random() % 60 + 1;
    const std::int64_t first = random() % (config.batchTokens + 1);
    const std::int64_t tokens = random() % (config.batchTokens - first + 1);
    const TokenRows rows = tokenRows(config, first, tokens);
    ASSERT_LE(rows.count(), mostTokenRows(config, tokens));
    std::int64_t next = first;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      ASSERT_EQ(rows.begin(row), next);
      next = rows.end(row);
      ASSERT_GT(next, rows.begin(row));
      ASSERT_LE(next - rows.begin(row), TokenRows::kTokens);
      const std::int64_t section = rows.begin(row) / rows.sectionTokens;
      ASSERT_EQ((next - 1) / rows.sectionTokens, section);
      ASSERT_LE(rows.sectionBegin(section), row);
      ASSERT_GT(rows.sectionBegin(section + 1), row);
    }
    ASSERT_EQ(next, first + tokens);
  }
}

}  // namespace
}  // namespace moeccl::gates

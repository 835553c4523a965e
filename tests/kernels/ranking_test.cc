#include "kernels/ranking.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

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

// One of 32.
struct Lane {
  static constexpr int kCount = 32;
  std::int64_t index() const { return number; }

  std::int64_t number;
};

// A match of lanes that the program calls in two places is slow, if it is the same at all.
TEST(Ranking, LanesWithAnEntryAndWithoutCallAtOnePlace) {
  struct Call {
    void operator()(std::int64_t at, std::int32_t expert, int line = __builtin_LINE()) const {
      lines.insert(line);
      ++(expert < 0 ? without : with);
      EXPECT_EQ(at < 0, expert < 0);
    }

    std::set<int>& lines;
    int &with, &without;
  };
  std::vector<std::int32_t> experts(37);
  std::iota(experts.begin(), experts.end(), 0);
  const Entries entries = entriesOf(experts.data(), nullptr, 37, 1, 37, 37, 1);
  std::set<int> lines;
  int with = 0, without = 0;
  for (std::int64_t lane = 0; lane < Lane::kCount; ++lane)
    eachEntry(Lane{lane}, entries, 0, Call{lines, with, without});
  EXPECT_EQ(with, 37);
  EXPECT_EQ(without, 64 - 37);
  EXPECT_EQ(lines.size(), 1u);
}

}  // namespace
}  // namespace moeccl

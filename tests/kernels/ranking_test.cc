// Ranking of tokens by experts at the limits of its counters.
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

// One of 32, which notes where it is asked to match.
struct Lane {
  static constexpr int kCount = 32;
  std::int64_t index() const { return number; }
  void sync() const {}
  Match match(std::int32_t, int line = __builtin_LINE()) const {
    lines.insert(line);
    return {0, 1};
  }

  std::int64_t number;
  std::set<int>& lines;
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
  std::vector<std::int64_t> counts(experts.size()), sums(counts.size() + 1);
  std::set<int> calls, counting, ranking;
  int with = 0, without = 0;
  for (std::int64_t number = 0; number < Lane::kCount; ++number) {
    eachEntry(Lane{number, calls}, entries, 0, Call{calls, with, without});
    countChunk(Lane{number, counting}, entries, 0, counts.data());
    rankChunk(Lane{number, ranking}, entries, 0, sums.data(), counts.data(),
              [](std::int64_t, std::int32_t, std::int64_t) {});
  }
  EXPECT_EQ(with, 37);
  EXPECT_EQ(without, 64 - 37);
  for (const std::set<int>& lines : {calls, counting, ranking}) EXPECT_EQ(lines.size(), 1u);
}

}  // namespace
}  // namespace moeccl

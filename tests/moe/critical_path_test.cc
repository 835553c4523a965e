// What passes take whose phases go on beside each other.
#include "src/model/critical_path.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "algorithms/schedules/schedule_registry.h"

namespace moeccl {
namespace {

using Prices = std::map<std::string, PhasePrice>;  // by the phase's name, of all its chunks

struct Case {
  const char* name;
  schedules::Options options;
  bool background;
  double seconds;
};

// S1 with exchanges of 16 between nodes and 4 in them, and experts of 12.
const Prices kS1 = {{"dispatch", {.exchange = 8, .link = Link::between}},
                    {"experts", {.local = 12}},
                    {"combine", {.exchange = 8, .link = Link::between}},
                    {"MP-AllGather", {.exchange = 4, .link = Link::inNode}},
                    {"token dispatch", {.exchange = 8, .link = Link::between}},
                    {"token combine", {.exchange = 8, .link = Link::between}},
                    {"residual branch", {.local = 6}}};

double secondsOf(const char* schedule, const Case& it, const Prices& prices) {
  const schedules::Schedule value =
      schedules::known(*schedules::find(schedule), Pass::forward, it.options);
  std::vector<PhasePrice> all;
  for (const schedules::Phase& phase : value.phases) {
    PhasePrice& price = all.emplace_back();
    if (const auto known = prices.find(phase.name); known != prices.end()) price = known->second;
    const int chunks = phase.name == "residual branch" ? 1 : value.chunks;
    price.exchange /= chunks;
    price.local /= chunks;
  }
  return criticalPath(value, all, it.background);
}

TEST(CriticalPath, OfS1) {
  const Case cases[] = {
      {"one after another", {}, false, 32},
      {"a stream has nothing beside it", {}, true, 32},
      // dispatch 0-4, 4-8; experts 4-10, 10-16; combine 10-14, 16-20; gather 16-18, 20-22
      {"chunks, beside experts", {.chunks = 2}, true, 22},
      {"the same of token routing", {.dropless = true, .chunks = 2, .routed = true}, true, 22},
      // Experts hold up dispatch, until 14, and combine, until 24; the first gather is beside it.
      {"chunks, beside each other", {.chunks = 2}, false, 30},
      // dispatch 0-8; the branch 0-6, experts 8-20
      {"residual branch, beside dispatch", {.residual = true}, true, 32},
      {"residual branch", {.residual = true}, false, 38},
  };
  for (const Case& it : cases) EXPECT_DOUBLE_EQ(secondsOf("S1", it, kS1), it.seconds) << it.name;
}

// Exchanges of one kind of link have one after another, whatever their streams.
TEST(CriticalPath, SharesLinks) {
  Prices between = kS1;
  between["MP-AllGather"].link = Link::between;
  // The last gather 22-24: the one before it has the link until 22.
  EXPECT_DOUBLE_EQ(secondsOf("S1", {"", {.chunks = 2}, true, 0}, between), 24);
  // Nothing hides but what goes on in nodes beside what goes on between them.
  EXPECT_DOUBLE_EQ(secondsOf("S1", {"", {.chunks = 2}, false, 0}, between), 32);
}

// However many chunks, what the link takes stays, and some of what is beside it shows at the ends.
TEST(CriticalPath, OfManyChunksIsNearTheLongestOfTheParts) {
  for (const int chunks : {2, 4, 8, 64}) {
    const double seconds = secondsOf("S1", {"", {.chunks = chunks}, true, 0}, kS1);
    EXPECT_GT(seconds, 16) << chunks;
    EXPECT_LE(seconds, 22) << chunks;
  }
}

}  // namespace
}  // namespace moeccl

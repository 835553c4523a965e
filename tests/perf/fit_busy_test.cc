// When moeccl-fit says that other programs took the processors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

#include "perf/fit/busy.h"

namespace moeccl::perf {
namespace {

const double kTick = 1 / static_cast<double>(sysconf(_SC_CLK_TCK));

TEST(FitBusy, TimesOfTheProcessorsThatCount) {
  const std::string text =
      "cpu  1111 2222 3333 4444 5 6 7 8 9 10\n"
      "cpu0 100 20 3 9000 50 60 70 4 0 0\n"
      "cpu1 1 1 1 9000 50 60 70 2 0 0\n"
      "cpu12 1000 0 0 9000 50 60 70 1 0 0\n"
      "intr 5 6 7\nctxt 1\n";
  const auto times = [&](std::vector<bool> counted) {
    std::istringstream stat(text);
    return processorTimes(stat, counted);
  };
  EXPECT_DOUBLE_EQ(times({true, true}).used, 126 * kTick);
  EXPECT_DOUBLE_EQ(times({true, true}).stolen, 6 * kTick);
  EXPECT_DOUBLE_EQ(times({false, true}).used, 3 * kTick);
  std::vector<bool> last(13);
  last[12] = true;
  EXPECT_DOUBLE_EQ(times(last).used, 1000 * kTick);
}

TEST(FitBusy, NothingWhereNobodySays) {
  for (const char* text :
       {"", "cpu0 1 2 3\n", "cpu0 1 2 3 4 5 6 7 many\n", "cpux 1 2 3 4 5 6 7 8\n"}) {
    std::istringstream stat(text);
    const ProcessorTimes times = processorTimes(stat, {true, true});
    EXPECT_EQ(times.used, 0) << text;
    EXPECT_EQ(times.stolen, 0) << text;
  }
}

// 8 ranks and two processors for 10 seconds.
MachineUse emulated(double used, double own, double stolen = 0) {
  return {0, 8, 2, 10, {used, stolen}, own};
}

TEST(FitBusy, WhatRanksUseThemselvesIsNotTaken) {
  EXPECT_FALSE(isBusy(emulated(20, 20)));
  EXPECT_FALSE(isBusy(emulated(20, 19)));
  EXPECT_FALSE(isBusy(emulated(19, 20)));  // ticks are not exact
  EXPECT_TRUE(isBusy(emulated(20, 16)));   // two spinning programs beside 8 ranks
  EXPECT_TRUE(isBusy(emulated(20, 0)));
  EXPECT_TRUE(isBusy(emulated(17, 17, 3)));
}

TEST(FitBusy, WhatOthersLeaveMayBeEnough) {
  const MachineUse few{0, 8, 64, 10, {400, 0}, 0}, many{0, 8, 64, 10, {600, 0}, 0};
  EXPECT_FALSE(isBusy(few));
  EXPECT_TRUE(isBusy(many));
}

TEST(FitBusy, AFewTicksOfAShortTimeSayNothing) {
  EXPECT_FALSE(isBusy({0, 2, 2, 0.01, {0.02, 0}, 0}));
  EXPECT_FALSE(isBusy({0, 2, 2, 0, {0.02, 0}, 0}));
  EXPECT_FALSE(isBusy({0, 2, 2, 0.1, {0.06, 0}, 0}));
  EXPECT_TRUE(isBusy({0, 2, 2, 0.1, {0.1, 0}, 0}));
}

TEST(FitBusy, ItSaysWhoTakesWhat) {
  EXPECT_EQ(textOf(emulated(19.7, 0)),
            "other programs take 1.97 of the 2 processors of rank 0's machine");
  EXPECT_EQ(textOf(emulated(20.1, 0)),
            "other programs take 2.00 of the 2 processors of rank 0's machine");  // in ticks
  EXPECT_EQ(textOf({3, 1, 4, 10, {30, 10}, 25}),
            "the host of this virtual machine takes 1.50 of the 4 processors of rank 3's machine");
}

}  // namespace
}  // namespace moeccl::perf

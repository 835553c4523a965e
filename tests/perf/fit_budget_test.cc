// How moeccl-fit shares its time among what it measures.
#include <gtest/gtest.h>

#include "perf/fit/budget.h"

namespace moeccl::perf {
namespace {

TEST(FitBudget, SharesByWeight) {
  Budget budget(100);
  const std::size_t large = budget.addPart(0.8, 4), small = budget.addPart(0.2, 2);
  EXPECT_DOUBLE_EQ(budget.until(large, 0), 20);
  EXPECT_DOUBLE_EQ(budget.until(small, 0), 10);
  EXPECT_EQ(budget.units(), 6u);
}

TEST(FitBudget, WhatIsLeftGoesToAllThatCome) {
  Budget budget(100);
  const std::size_t part = budget.addPart(1, 4);
  budget.finishUnit(part, 0, 10);
  EXPECT_DOUBLE_EQ(budget.until(part, 10), 40);
  EXPECT_DOUBLE_EQ(budget.secondsLeft(10), 30);
  budget.finishUnit(part, 10, 98);
  EXPECT_DOUBLE_EQ(budget.until(part, 98), 99);
  EXPECT_DOUBLE_EQ(budget.secondsLeft(98), 2);  // never more than the budget has
  EXPECT_EQ(budget.finished(), 2u);
}

TEST(FitBudget, NothingIsLeftAfterTheEnd) {
  Budget budget(100);
  const std::size_t part = budget.addPart(1, 2);
  EXPECT_LE(budget.until(part, 101), 101);
  EXPECT_EQ(budget.secondsLeft(101), 0);
}

TEST(FitBudget, PartsWithoutUnitsTakeNothing) {
  Budget budget(100);
  budget.addPart(0.9, 0);
  const std::size_t part = budget.addPart(0.1, 1);
  EXPECT_DOUBLE_EQ(budget.until(part, 0), 100);
}

}  // namespace
}  // namespace moeccl::perf

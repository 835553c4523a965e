// Small right plans to spoil, and what is expected of the verifier then.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "src/verify/verify.h"
#include "tests/plans/support.h"

namespace moeccl::testing {

inline constexpr Contract kTwoRanks{Collective::allToAll, 2};
inline constexpr Contract kThreeRanks{Collective::allToAll, 3};

inline ::testing::AssertionResult says(const Violation& violation, const std::string& words) {
  if (violation.text.find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "nothing said about \"" << words << "\"";
}

// The first violation must be about this rank and op (-1: the rank as a whole), and say all of
// this.
inline void expectRejected(const std::vector<Violation>& violations, int rank, int op,
                           std::initializer_list<const char*> said) {
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].rank, rank) << text(violations);
  EXPECT_EQ(violations[0].op, op) << text(violations);
  for (const char* words : said) EXPECT_TRUE(says(violations[0], words)) << violations[0].text;
}

inline void expectRejected(const Contract& contract, const std::vector<Plan>& plans, int rank,
                           int op, std::initializer_list<const char*> said) {
  expectRejected(verify(contract, plans), rank, op, said);
}

// All-to-all of any number of ranks: op 0 the copy, then a receive and a send per other rank.
inline Plan exchange(int ranks, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
    plan.recv({}, from, output(from));
    plan.send({}, to, input(to));
  }
  return plan.build();
}

inline std::vector<Plan> exchange(int ranks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) plans.push_back(exchange(ranks, rank));
  return plans;
}

// Two ranks; rank 0's plan is the one given, which must exchange with a right one.
inline std::vector<Plan> againstRightOne(Plan plan) {
  Plan right = exchange(2, 1);
  right.lanes = plan.lanes;
  return {std::move(plan), std::move(right)};
}

}  // namespace moeccl::testing

// A test that runs for every registered algorithm and proves sets of its plans.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <iostream>
#include <string>

#include "tests/plans/support.h"

namespace moeccl {

// Found by GoogleTest when a test's parameter is printed.
inline void PrintTo(const Algorithm& algorithm, std::ostream* out) {
  *out << testing::nameOf(algorithm);
}

}  // namespace moeccl

namespace moeccl::testing {

class Algorithms : public ::testing::TestWithParam<Algorithm> {
 public:
  static std::string nameOfTest(const ::testing::TestParamInfo<Algorithm>& info) {
    return nameOf(info.param);
  }

 protected:
  void TearDown() override {
    std::cout << nameOf(GetParam()) << ": " << verified_ << " sets of plans, " << ops_ << " ops, "
              << notOffered_ << " not offered; built in " << building_.count() << " s, verified in "
              << verifying_.count() << " s\n";
    EXPECT_TRUE(verified_ > 0 || IsSkipped());
  }

  void check(const Topology& topology, const Parameters& parameters = {}) {
    const auto start = Clock::now();
    const auto plans = plansOf(GetParam(), topology, parameters);
    if (!plans) {
      ++notOffered_;
      return;
    }
    const auto built = Clock::now();
    const auto violations = verify({GetParam().collective, topology.ranks()}, *plans);
    building_ += built - start;
    verifying_ += Clock::now() - built;
    ++verified_;
    for (const Plan& plan : *plans) ops_ += plan.ops.size();
    ASSERT_TRUE(violations.empty())
        << "nodes of the ranks: " << nameOf(topology) << ", window " << parameters.window << "\n"
        << text(violations);
  }

  // With the usual window and with others; where these make no difference, once is enough.
  void checkWindows(const Topology& topology,
                    std::initializer_list<int> windows = {-1, 0, 1, 2, 3, 7, 1 << 30}) {
    const auto usual = plansOf(GetParam(), topology);
    check(topology);
    for (int window : windows)
      if (plansOf(GetParam(), topology, {.window = window}) != usual)
        check(topology, {.window = window});
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> building_{0}, verifying_{0};
  int verified_ = 0, notOffered_ = 0;
  std::size_t ops_ = 0;
};

}  // namespace moeccl::testing

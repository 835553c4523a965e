// A test that runs for every registered algorithm and proves sets of its plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

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
    const auto violations = verify(contractOf(GetParam().collective, topology, parameters), *plans);
    building_ += built - start;
    verifying_ += Clock::now() - built;
    ++verified_;
    for (const Plan& plan : *plans) ops_ += plan.ops.size();
    ASSERT_TRUE(violations.empty())
        << "nodes of the ranks: " << nameOf(topology) << "; " << nameOf(parameters) << "\n"
        << text(violations);
  }

  // With the usual parameters and with others; where these make no difference, once is enough.
  void checkVariants(const Topology& topology, const Parameters& usual,
                     std::initializer_list<int> values = {-1, 0, 1, 2, 3, 7, 1 << 30}) {
    check(topology, usual);
    // What makes no difference to one rank makes none to the others.
    const auto planOf = [&](const Parameters& parameters) -> std::optional<Plan> {
      try {
        return GetParam().plan(topology, parameters, 0);
      } catch (const NotOffered&) {
        return std::nullopt;
      }
    };
    std::vector<std::optional<Plan>> seen{planOf(usual)};
    for (int Parameters::*parameter :
         {&Parameters::window, &Parameters::radix, &Parameters::leaders, &Parameters::chunks})
      for (int value : values) {
        if (parameter == &Parameters::chunks && value > 7) continue;
        Parameters other = usual;
        other.*parameter = value;
        const std::optional<Plan> plan = planOf(other);
        if (std::ranges::find(seen, plan) != seen.end()) continue;
        seen.push_back(plan);
        check(topology, other);
      }
  }
  void checkVariants(const Topology& topology,
                     std::initializer_list<int> values = {-1, 0, 1, 2, 3, 7, 1 << 30}) {
    checkVariants(topology, drawGrid(topology.ranks()), values);
  }

  // `draws` topologies of uneven nodes, of `most` ranks at most.
  void checkRandom(int draws, int most) {
    std::mt19937 random(20240229);
    for (int i = 0; i < draws; ++i) {
      const Topology topology = randomTopology(random, most);
      Parameters parameters = drawGrid(topology.ranks());
      parameters.window = 1 + i % 20;
      parameters.radix = 2 + i % 7;
      parameters.leaders = i % 4;
      check(topology, parameters);
    }
  }

  Parameters drawGrid(int ranks) {
    Parameters parameters =
        needsGrid(GetParam().collective) ? randomGrid(random_, ranks) : Parameters{};
    if (hasRoot(GetParam().collective))
      parameters.root = static_cast<int>(random_() % static_cast<unsigned>(ranks));
    return parameters;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> building_{0}, verifying_{0};
  std::mt19937 random_{20240301};
  int verified_ = 0, notOffered_ = 0;
  std::size_t ops_ = 0;
};

}  // namespace moeccl::testing

// How much of what can go wrong does the verifier see? Every pass of every schedule is spoiled in
// every small way. A mutant that the verifier accepts must be right whenever its phases run in any
// order that it allows.
#include <gtest/gtest.h>

#include <iomanip>
#include <iostream>
#include <map>

#include "src/verify/verify_schedule.h"
#include "tests/schedules/layers.h"
#include "tests/schedules/mutations.h"
#include "tests/schedules/support.h"

namespace moeccl::schedules {
namespace {

// MP, EP and ESP groups that differ from each other in size and in place.
const std::vector<Grid> kGrids = {{2, 2, 2, true}, {2, 2, 3, false}, {3, 3, 2, true}};
constexpr int kOrders = 3;

// A random order that streams and dependencies allow.
std::vector<int> anyOrder(const Schedule& schedule, std::mt19937& random) {
  const auto before = earlier(schedule);
  std::vector<int> order;
  std::vector<bool> done(schedule.phases.size());
  while (order.size() < done.size()) {
    std::vector<int> ready;
    for (std::size_t i = 0; i < done.size(); ++i) {
      bool waits = done[i];
      for (std::size_t j = 0; j < i; ++j) waits |= before[i][j] && !done[j];
      if (!waits) ready.push_back(static_cast<int>(i));
    }
    const int next = ready[random() % ready.size()];
    done[static_cast<std::size_t>(next)] = true;
    order.push_back(next);
  }
  return order;
}

struct Row {
  int caught = 0, harmless = 0, missed = 0;
};

class MutationTest : public ::testing::Test {
 protected:
  void judgeAll(const Entry& entry, const Options& options) {
    Schedule forward, backward;
    try {
      forward = scheduleOf(entry, Pass::forward, options);
      backward = scheduleOf(entry, Pass::backward, options);
    } catch (const NotOffered&) {
      return;
    }
    makeLayers(forward);
    forEachMutant(forward, [&](const Mutant& mutant) {
      judge(entry.name, forward, mutant, mutant.schedule, backward);
    });
    forEachMutant(backward, [&](const Mutant& mutant) {
      judge(entry.name, backward, mutant, forward, mutant.schedule);
    });
  }

  void print() const {
    Row all;
    for (const auto& [kind, row] : rows_) {
      std::cout << std::setw(22) << kind << std::setw(8) << row.caught << " caught" << std::setw(6)
                << row.harmless << " harmless" << std::setw(4) << row.missed << " missed\n";
      all.caught += row.caught;
      all.harmless += row.harmless;
      all.missed += row.missed;
    }
    std::cout << std::setw(22) << "all" << std::setw(8) << all.caught << " caught" << std::setw(6)
              << all.harmless << " harmless" << std::setw(4) << all.missed << " missed\n";
    EXPECT_GT(all.caught, 10000);
    EXPECT_EQ(all.missed, 0);
    EXPECT_GE(all.caught, 0.99 * (all.caught + all.missed));
    // What the verifier lets pass because it changes nothing is little.
    EXPECT_LT(all.harmless, 0.05 * all.caught);
  }

 private:
  void makeLayers(const Schedule& forward) {
    layers_.clear();
    for (Grid grid : kGrids) {
      if (forward.needs.expertsInMp) grid.mp = grid.ranks();
      for (int turn = 0; turn < 2; ++turn) {
        RoutedLayer layer;
        do layer = randomLayer(forward, grid, random_);
        while (layer.tokens < 2 * grid.mp * forward.chunks || layer.localExperts < 2 ||
               layer.choices < 2);
        layer.gateGradients = turn == 0;
        layers_.push_back(std::move(layer));
      }
    }
  }

  void judge(std::string_view name, const Schedule& original, const Mutant& mutant,
             const Schedule& forward, const Schedule& backward) {
    Row& row = rows_[std::string(mutant.kind)];
    for (const Schedule* schedule : {&forward, &backward})
      if (!verifyOrder(*schedule).empty()) return void(++row.caught);
    for (const RoutedLayer& layer : layers_)
      if (!verify(forward, backward, layer).empty()) return void(++row.caught);
    for (const RoutedLayer& layer : layers_)
      for (int turn = 0; turn < kOrders; ++turn) {
        const auto wrong = follow(forward, anyOrder(forward, random_), backward,
                                  anyOrder(backward, random_), layer);
        if (wrong.empty()) continue;
        ++row.missed;
        ADD_FAILURE() << name << ": accepted after \"" << mutant.kind << "\" of "
                      << (mutant.phase >= 0 ? describe(original, mutant.phase) : "")
                      << (mutant.table >= 0
                              ? original.tables[static_cast<std::size_t>(mutant.table)].name
                              : "")
                      << ", but " << wrong[0];
        return;
      }
    ++row.harmless;
  }

  std::mt19937 random_{5};
  std::vector<RoutedLayer> layers_;
  std::map<std::string, Row> rows_;
};

TEST_F(MutationTest, AreCaughtUnlessTheyChangeNothing) {
  for (const Entry& entry : registry())
    for (const Options& options :
         {Options{}, Options{.dropless = true}, Options{.dropless = true, .routed = true},
          Options{.residual = true}, Options{.chunks = 2}, Options{.residual = true, .chunks = 2},
          Options{.dropless = true, .residual = true, .routed = true}})
      judgeAll(entry, options);
  print();
}

}  // namespace
}  // namespace moeccl::schedules

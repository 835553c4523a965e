// Every schedule under every transformation, proved on thousands of layers.
#include <gtest/gtest.h>

#include <iostream>

#include "src/verify/verify_schedule.h"
#include "tests/schedules/layers.h"
#include "tests/schedules/support.h"

namespace moeccl::schedules {
namespace {

std::string text(const std::vector<std::string>& wrong) {
  std::string all;
  for (const std::string& line : wrong) all += line + "\n";
  return all;
}

std::string nameOf(const Grid& grid) {
  return "N_MP " + std::to_string(grid.mp) + " N_EP " + std::to_string(grid.ep) + " N_ESP " +
         std::to_string(grid.esp) + (grid.espConsecutive ? "" : " EP consecutive");
}

TEST(Verify, WideAllSchedulesOnAllGrids) {
  std::mt19937 random(1);
  int layers = 0;
  for (const Entry& entry : registry())
    for (const Options& options : everyOption()) {
      Schedule forward, backward;
      try {
        forward = scheduleOf(entry, Pass::forward, options);
        backward = scheduleOf(entry, Pass::backward, options);
      } catch (const NotOffered&) {
        continue;
      }
      EXPECT_EQ(text(verifyOrder(forward)) + text(verifyOrder(backward)), "");
      for (const Grid& grid : gridsUpTo(8)) {
        if (!applies(forward, grid)) continue;
        for (int turn = 0; turn < 5; ++turn, ++layers) {
          const RoutedLayer layer = randomLayer(forward, grid, random);
          ASSERT_EQ(text(verify(forward, backward, layer)), "")
              << entry.name << ", dropless " << options.dropless << ", routed " << options.routed
              << ", residual " << options.residual << ", chunks " << options.chunks << ", "
              << nameOf(grid) << ", tokens " << layer.tokens << ", experts " << layer.experts();
        }
      }
    }
  std::cout << layers << " layers\n";
  EXPECT_GT(layers, 3000);
}

TEST(Verify, LargerGridsAndPrimes) {
  std::mt19937 random(2);
  for (const Grid& grid : {Grid{4, 4, 4, true}, Grid{2, 12, 1, false}, Grid{13, 13, 1, true},
                           Grid{1, 5, 5, true}, Grid{3, 3, 7, false}, Grid{16, 4, 4, true}})
    for (const Entry& entry : registry())
      for (const Options& options : everyOption()) try {
          const Schedule forward = scheduleOf(entry, Pass::forward, options);
          const Schedule backward = scheduleOf(entry, Pass::backward, options);
          if (!applies(forward, grid)) continue;
          EXPECT_EQ(text(verify(forward, backward, randomLayer(forward, grid, random))), "")
              << entry.name << ", " << nameOf(grid);
        } catch (const NotOffered&) {
        }
}

// What a schedule's file states as its backward pass does the same as the mirror, which is right as
// well. (The auxiliary loss is not the mirror's: in the baseline each rank gates the batches of
// others too.)
TEST(Verify, TheMirrorOfEverySchedule) {
  std::mt19937 random(3);
  for (const Entry& entry : registry())
    for (const bool residual : {false, true}) {
      Schedule forward = entry.forward();
      if (residual) forward = withResidual(forward);
      const Schedule backward = mirrored(forward);
      for (const Grid& grid : gridsUpTo(8)) {
        if (!applies(forward, grid)) continue;
        RoutedLayer layer = randomLayer(forward, grid, random);
        layer.gateGradients = false;
        ASSERT_EQ(text(verify(forward, backward, layer)), "") << entry.name << ", " << nameOf(grid);
      }
    }
}

}  // namespace
}  // namespace moeccl::schedules

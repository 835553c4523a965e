// How many cores a rank can use, and whether they suffice.
#include "src/bootstrap/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace moeccl {
namespace {

// As a forked process sees them after `change`.
template <typename Change>
Cores coresInChild(Change change) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    change();
    const Cores mine = availableCores();
    _exit(write(ends[1], &mine, sizeof mine) == sizeof mine ? 0 : 1);
  }
  close(ends[1]);
  Cores cores;
  EXPECT_EQ(read(ends[0], &cores, sizeof cores), static_cast<ssize_t>(sizeof cores));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return cores;
}

TEST(Cores, AreThoseOfTheAffinity) {
  const Cores here = availableCores(), there = coresInChild([] {});
  EXPECT_GE(here.count, 1);
  EXPECT_EQ(there.which, here.which);
  EXPECT_EQ(there.scheduling, here.scheduling);
  EXPECT_EQ(there.count, here.count);
  if (here.count == 1) GTEST_SKIP() << "one core";
  const Cores bound = coresInChild([] {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  });
  EXPECT_EQ(bound.count, 1);
  EXPECT_NE(bound.which, here.which);
}

TEST(Cores, AreCrowdedWhereRanksOfSeveralGroupsShareTooFew) {
  const Cores a{1, 10, 2}, apart{1, 11, 2}, elsewhere{2, 12, 2};
  EXPECT_FALSE(crowdedAcrossGroups(std::vector{a, a}, 0));
  EXPECT_FALSE(crowdedAcrossGroups(std::vector{a, apart}, 0)) << "a core for each";
  EXPECT_FALSE(crowdedAcrossGroups(std::vector{a, a, a}, 0)) << "one group";
  EXPECT_TRUE(crowdedAcrossGroups(std::vector{a, apart, a}, 0));
  EXPECT_EQ(ranksThatShare(std::vector{a, elsewhere, apart, a}, 0), 3);
  EXPECT_TRUE(crowdedAcrossGroups(std::vector{a, apart, a}, 1));
  EXPECT_FALSE(crowdedAcrossGroups(std::vector{a, a, a, elsewhere}, 0));
  EXPECT_FALSE(crowdedAcrossGroups(std::vector{a, apart, elsewhere, elsewhere}, 2));
}

}  // namespace
}  // namespace moeccl

// That contenders of one name have one plan: the names, held against the plans.
#include <gtest/gtest.h>

#include "algorithms/choice.h"
#include "perf/layers/plan_names.h"
#include "src/profile/group_text.h"
#include "src/select/alternatives.h"

namespace moeccl::perf::layers {
namespace {

using Topologies = std::vector<Topology>;

std::string nameOf(const std::string& exchange, const AlgorithmChoice& choice,
                   const GroupSizes& groups, moecclSchedule_t schedule = moecclScheduleS1) {
  return nameOfPlans(schedule, {exchange + ": " + textOf(choice)}, groups);
}

// Of all ways to do `collective`, those that are called the same do the same on all `topologies`. How many pairs are
// called the same.
int holdAgainstPlans(const std::string& exchange, Collective collective, const GroupSizes& groups,
                     const Topologies& topologies, const Parameters& problem = {}) {
  const std::vector<AlgorithmChoice> all = alternatives(collective, problem);
  int same = 0;
  for (const AlgorithmChoice& one : all)
    for (const AlgorithmChoice& other : all) {
      if (textOf(one) >= textOf(other) ||
          nameOf(exchange, one, groups) != nameOf(exchange, other, groups))
        continue;
      ++same;
      for (const Topology& topology : topologies)
        EXPECT_TRUE(samePlans(one, other, topology)) << exchange << ": " << textOf(one) << " and "
                                                     << textOf(other) << " on " << textOf(topology);
    }
  return same;
}

// Groups of that many ranks, on one node or not.
Topologies groupsOf(int ranks, bool inNodes) {
  if (inNodes) return {Topology::even(1, ranks)};
  Topologies all{Topology::even(ranks, 1)};
  if (ranks % 2 == 0 && ranks > 2) all.push_back(Topology::even(2, ranks / 2));
  if (ranks > 2) all.push_back(Topology::uneven(std::vector{1, ranks - 1}));
  return all;
}

TEST(PlanNames, OfOneCollectiveAreThoseOfOnePlan) {
  for (const bool inNodes : {true, false})
    for (int ranks = 2; ranks <= 20; ++ranks) {
      const Topologies topologies = groupsOf(ranks, inNodes);
      GroupSizes groups;
      groups.nMp = ranks;
      groups.mpInNodes = inNodes;
      const int gathers =
          holdAgainstPlans("MP-AllGather", Collective::allGather, groups, topologies);
      EXPECT_EQ(gathers > 0, ranks == 2 || (inNodes && ranks <= 17)) << ranks;
      EXPECT_EQ(holdAgainstPlans("MP-AllGather of the gate's sums", Collective::allGather, groups,
                                 topologies),
                gathers);
      EXPECT_EQ(holdAgainstPlans("AllReduce", Collective::allReduce, groups, topologies) > 0,
                ranks == 2 && inNodes);
      groups = {};
      groups.nEp = ranks;
      for (const char* exchange : {"first EP-AlltoAll", "second EP-AlltoAll"})
        EXPECT_EQ(holdAgainstPlans(exchange, Collective::allToAll, groups, topologies) > 0,
                  ranks == 2);
      groups = {};
      groups.nEsp = ranks;
      groups.espInNodes = inNodes;
      EXPECT_EQ(holdAgainstPlans("ESP-AllReduce", Collective::allReduce, groups, topologies) > 0,
                ranks == 2 && inNodes);
    }
}

TEST(PlanNames, OfDispatchAndCombineAreThoseOfOnePlan) {
  for (const auto& [nMp, nEp, nEsp] : {std::tuple{1, 8, 1}, {2, 8, 1}, {4, 4, 2}, {1, 2, 4}})
    for (const Topology& topology : {Topology::even(2, 4), Topology::even(4, 2),
                                     Topology::even(1, 8), Topology::uneven(std::vector{5, 3})}) {
      GroupSizes groups;
      groups.nMp = nMp, groups.nEp = nEp, groups.nEsp = nEsp;
      Parameters problem;
      problem.grid = Grid{nMp, nEp, nEsp};
      problem.experts = 2;
      const bool nothingTwice = nEsp == 1;
      EXPECT_EQ(holdAgainstPlans("dispatch", Collective::dispatch, groups, {topology}, problem) > 0,
                nothingTwice);
      EXPECT_EQ(holdAgainstPlans("combine", Collective::combine, groups, {topology}, problem) > 0,
                nothingTwice);
      // S2's without a gather.
      for (const AlgorithmChoice& saa : alternatives(Collective::combineAllGather, problem))
        for (const AlgorithmChoice& combine : alternatives(Collective::combine, problem))
          if (nameOf("SAA", saa, groups, moecclScheduleS2) == nameOf("combine", combine, groups)) {
            EXPECT_EQ(nMp, 1);
            EXPECT_TRUE(samePlans(saa, combine, topology)) << textOf(combine);
          }
    }
}

TEST(PlanNames, AreWhole) {
  GroupSizes pairs{2, 2, 2, true, true};
  const std::string gather = "MP-AllGather: ";
  EXPECT_EQ(nameOfPlans(moecclScheduleS1, {gather + "ring", gather + "ring:x=1"}, pairs),
            "S1; MP-AllGather: linear; MP-AllGather: ring:x=1");
  EXPECT_EQ(
      nameOfPlans(moecclSchedulePpMoe, {"ESP-AllReduce: hierarchical, AllReduce: ring"}, pairs),
      "PPMoE; ESP-AllReduce: linear, AllReduce: ring");
  EXPECT_EQ(nameOfPlans(moecclScheduleS2, {"dispatch: dedup, SAA: sequential"}, pairs),
            "S2; dispatch: dedup, SAA: sequential");
  pairs.nMp = 1;
  EXPECT_EQ(nameOfPlans(moecclScheduleS2, {"dispatch: dedup, SAA: sequential"}, pairs),
            "S1; dispatch: dedup, combine: dedup");
  EXPECT_EQ(nameOfPlans(moecclScheduleS2, {"dispatch: dedup, SAA: pipelined"}, pairs),
            "S1; dispatch: dedup, SAA: pipelined");
}

}  // namespace
}  // namespace moeccl::perf::layers

// What the schedules and their transformations are, as people read them. That they are right is the
// verifier's part.
#include "algorithms/schedules/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "moeccl/moe.h"
#include "tests/schedules/support.h"

namespace moeccl::schedules {
namespace {

// "dispatch, combine; ..." in the order in which ranks start them.
std::string exchangesOf(const Schedule& schedule) {
  std::string text;
  for (const Phase& phase : schedule.phases) {
    if (!communicates(phase)) continue;
    if (!text.empty()) text += ", ";
    text += phase.name;
    if (phase.stream > 0) text += " (" + std::to_string(phase.stream) + ")";
  }
  return text;
}

std::string exchangesOf(const char* name, Pass pass, const Options& options = {}) {
  return exchangesOf(scheduleOf(*find(name), pass, options));
}

constexpr Pass kForward = Pass::forward, kBackward = Pass::backward;
constexpr Options kDropless{.dropless = true}, kResidual{.residual = true};
constexpr Options kRouted{.dropless = true, .routed = true};

TEST(Schedules, AreFoundByTheirNames) {
  ASSERT_FALSE(registry().empty());
  for (const Entry& entry : registry()) {
    EXPECT_EQ(find(entry.name), &entry);
    EXPECT_EQ(scheduleOf(entry, kForward).name, entry.name);
    EXPECT_FALSE(entry.description.empty());
  }
  EXPECT_EQ(find("ppmoe"), find("PPMoE"));
  // Programs have these numbers.
  EXPECT_EQ(find("baseline"), &registry()[moecclScheduleBaseline - 1]);
  EXPECT_EQ(find("S1"), &registry()[moecclScheduleS1 - 1]);
  EXPECT_EQ(find("S2"), &registry()[moecclScheduleS2 - 1]);
  EXPECT_EQ(find("PPMoE"), &registry()[moecclSchedulePpMoe - 1]);
  EXPECT_EQ(find("S"), nullptr);
  EXPECT_EQ(find("S11"), nullptr);
}

TEST(Builder, RefusesTablesThatThereAreNot) {
  Builder builder("mine", Pass::forward);
  builder.output(builder.input());
  EXPECT_THROW(builder.regroup(999, {Dim::tokens}, "made"), std::invalid_argument);
  builder.add({.kind = Kind::add, .name = "add", .reads = {0}, .writes = {-1}});
  try {
    builder.build();
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "the schedule mine has no table -1; it has 1 so far");
  }
}

TEST(Schedules, ExchangeForward) {
  EXPECT_EQ(exchangesOf("baseline", kForward),
            "ESP-AllGather, first EP-AlltoAll, ESP-AllReduce, second EP-AlltoAll");
  EXPECT_EQ(exchangesOf("S1", kForward),
            "dispatch, combine, MP-AllGather, MP-AllGather of the gate's sums");
  EXPECT_EQ(exchangesOf("S2", kForward), "dispatch, SAA");
  EXPECT_EQ(exchangesOf("PPMoE", kForward), "AllReduce");
}

TEST(Schedules, ExchangeBackward) {
  EXPECT_EQ(exchangesOf("baseline", kBackward),
            "first EP-AlltoAll, ESP-AllGather, ESP-ReduceScatter, second EP-AlltoAll");
  EXPECT_EQ(exchangesOf("S1", kBackward),
            "dispatch, combine, MP-AllGather, MP-AllReduce of the gate's gradient");
  EXPECT_EQ(exchangesOf("S2", kBackward), "dispatch, SAA");
  EXPECT_EQ(exchangesOf("PPMoE", kBackward), "AllReduce");
}

TEST(Schedules, ExchangeRowsWithoutCapacity) {
  EXPECT_EQ(exchangesOf("S1", kForward, kDropless),
            "EP-AlltoAll of the counts, ESP-AllGather of the counts, EP-AlltoAllv to the experts, "
            "ESP-AllGather of the rows, ESP-ReduceScatter of the rows, EP-AlltoAllv from the "
            "experts, MP-AllGather, MP-AllGather of the gate's sums");
  EXPECT_EQ(exchangesOf("baseline", kForward, kDropless),
            "ESP-AllGather, EP-AlltoAll of the counts, EP-AlltoAllv to the experts, ESP-AllReduce, "
            "EP-AlltoAllv from the experts");
  for (const char* name : {"S1", "baseline"}) {
    const std::string exchanges = exchangesOf(name, kBackward, kDropless);
    EXPECT_EQ(exchanges.find("EP-AlltoAllv to the experts, ESP-AllGather of the rows, "
                             "ESP-ReduceScatter of the rows, EP-AlltoAllv from the experts"),
              0u)
        << exchanges;
    EXPECT_EQ(exchanges.find("counts"), std::string::npos) << exchanges;
  }
  EXPECT_EQ(exchangesOf("PPMoE", kForward, kDropless), "AllReduce");
  EXPECT_THROW(scheduleOf(*find("S2"), kForward, kDropless), NotOffered);
}

// Nobody gathers others' batches, nor their rows.
TEST(Schedules, RouteTokens) {
  EXPECT_EQ(exchangesOf("S1", kForward, kRouted),
            "token routing, token dispatch, token combine, MP-AllGather, MP-AllGather of the "
            "gate's sums");
  EXPECT_EQ(exchangesOf("S1", kBackward, kRouted),
            "token dispatch, token combine, MP-AllGather, MP-AllReduce of the gate's gradient");
  EXPECT_EQ(exchangesOf("baseline", kForward, kRouted),
            "token routing, token dispatch, token combine");
  EXPECT_EQ(exchangesOf("baseline", kBackward, kRouted), "token dispatch, token combine");
  EXPECT_EQ(
      exchangesOf("S1", kForward, {.dropless = true, .residual = true, .routed = true}),
      "token routing, token dispatch (1), token combine, MP-AllGather, MP-AllGather of the gate's "
      "sums");
  EXPECT_EQ(
      exchangesOf("S1", kBackward, {.dropless = true, .residual = true, .routed = true}),
      "token dispatch (1), MP-AllReduce of the residual branch's gradient (2), token combine, "
      "MP-AllGather, MP-AllReduce of the gate's gradient");
  for (const char* name : {"S2", "PPMoE"})
    EXPECT_THROW(scheduleOf(*find(name), kForward, kRouted), NotOffered) << name;
}

// The branch goes beside dispatch under S1, which gathers it with its parts, and else beside all.
TEST(Schedules, ExchangeBesideTheResidualBranch) {
  EXPECT_EQ(exchangesOf("S1", kForward, kResidual),
            "dispatch (1), combine, MP-AllGather, MP-AllGather of the gate's sums");
  EXPECT_EQ(exchangesOf("S1", kBackward, kResidual),
            "dispatch (1), MP-AllReduce of the residual branch's gradient (2), combine, "
            "MP-AllGather, MP-AllReduce of the gate's gradient");
  EXPECT_EQ(exchangesOf("S2", kForward, kResidual),
            "MP-AllGather of the residual branch (1), dispatch, SAA");
  EXPECT_EQ(exchangesOf("PPMoE", kForward, kResidual), "AllReduce");
  EXPECT_EQ(exchangesOf("PPMoE", kBackward, kResidual),
            "MP-AllReduce of the residual branch's gradient (1), AllReduce");
}

TEST(Schedules, PipelineTheirChunks) {
  const Schedule three = scheduleOf(*find("S1"), kForward, {.chunks = 3});
  EXPECT_EQ(three.streams, 4);
  std::string order;
  for (const Phase& phase : three.phases) {
    const int chunk = three.tables[static_cast<std::size_t>(phase.writes[0])].chunk;
    if (phase.name == "dispatch")
      order += " d";
    else if (phase.kind == Kind::experts)
      order += " e";
    else if (phase.name == "combine")
      order += " c";
    else if (phase.kind == Kind::combine)
      order += " u";
    else if (phase.name == "MP-AllGather")
      order += " g";
    else
      continue;
    order += std::to_string(chunk);
  }
  EXPECT_EQ(order, " d0 d1 d2 e0 c0 e1 c1 u0 g0 e2 c2 u1 g1 u2 g2");
  for (const char* name : {"baseline", "S2", "PPMoE"})
    EXPECT_THROW(scheduleOf(*find(name), kForward, {.chunks = 2}), NotOffered) << name;
  for (const char* name : {"S2", "PPMoE"})
    EXPECT_THROW(scheduleOf(*find(name), kForward, {.dropless = true, .chunks = 2}), NotOffered)
        << name;
}

// Without capacity the baseline cuts batches, which no phase splits.
// Tokens are split and gathered before the gate, which sees all of them.
TEST(Schedules, AreNotCutWhereAChunkNeedsTheOthers) {
  Builder s("gathers first", kForward);
  const int part = s.split(GroupKind::mp, s.input(), "part");
  const int parts = s.exchange(Collective::allGather, GroupKind::mp, part, "parts");
  const int tokens = s.join(parts, "tokens");
  const int routing = s.gate(tokens, s.weights("gate", {Dim::gateWeights})).routing;
  const int rows = s.permute(
      tokens, routing, {Dim::ep, Dim::localExperts, Dim::mp, Dim::slots, Dim::embedding}, "rows");
  const int given = s.exchange(Collective::splitDispatch, GroupKind::world, rows, "given");
  const int back =
      s.exchange(Collective::combineAllGather, GroupKind::world, s.experts(given, "made"), "back");
  s.output(s.combine(back, routing, "output"));
  const Schedule whole = s.build();
  EXPECT_EQ(chunked(whole, 1), whole);
  EXPECT_THROW(chunked(whole, 2), NotOffered);
}

TEST(Schedules, PipelineTheChunksOfBatches) {
  const Options inTwo = {.dropless = true, .chunks = 2};
  EXPECT_EQ(exchangesOf("baseline", kForward, inTwo),
            "ESP-AllGather (1), ESP-AllGather (2), EP-AlltoAll of the counts (1), EP-AlltoAll of "
            "the counts (2), EP-AlltoAllv to the experts (1), EP-AlltoAllv to the experts (2), "
            "ESP-AllReduce (1), ESP-AllReduce (2), EP-AlltoAllv from the experts (1), "
            "EP-AlltoAllv from the experts (2)");
  EXPECT_EQ(exchangesOf("baseline", kBackward, inTwo),
            "EP-AlltoAllv to the experts (1), EP-AlltoAllv to the experts (2), ESP-AllGather of "
            "the rows (1), ESP-AllGather of the rows (2), ESP-ReduceScatter of the rows (1), "
            "ESP-ReduceScatter of the rows (2), EP-AlltoAllv from the experts (1), EP-AlltoAllv "
            "from the experts (2)");
  EXPECT_EQ(
      exchangesOf("baseline", kForward, {.dropless = true, .chunks = 2, .routed = true}),
      "token routing, token routing, token dispatch (1), token dispatch (2), token combine (1), "
      "token combine (2)");
  // The branch has a stream of its own.
  EXPECT_TRUE(exchangesOf("baseline", kForward, {.dropless = true, .residual = true, .chunks = 2})
                  .starts_with("MP-AllGather of the residual branch (3), ESP-AllGather (1), "));
}

TEST(Schedules, SayWhatTheyCut) {
  const Schedule inTwo = scheduleOf(*find("baseline"), kForward, {.dropless = true, .chunks = 2});
  std::ostringstream text;
  printText(text, inTwo);
  for (const char* line : {"split in chunks: input -> chunk of input 1\n",
                           "split over ESP: routing 1 -> own routing 1\n"})
    EXPECT_NE(text.str().find(line), std::string::npos) << text.str();
}

TEST(Schedules, KnowAllCountsBeforeRowsAreUnderWay) {
  for (const auto& [name, schedule] : everySchedule()) {
    if (!schedule.dropless || schedule.chunks == 1) continue;
    bool rows = false;
    for (const Phase& phase : schedule.phases) {
      const Table& made = schedule.tables[static_cast<std::size_t>(phase.writes[0])];
      rows |= phase.kind == Kind::permute && !phase.backward;
      EXPECT_FALSE(rows && made.element == Element::count64) << name << ", chunk " << made.chunk;
    }
  }
}

// Once all routings are known, dispatches go on beside experts, and these beside combines.
TEST(Schedules, PipelineTheChunksOfTokenRouting) {
  EXPECT_EQ(exchangesOf("S1", kForward, {.dropless = true, .chunks = 2, .routed = true}),
            "token routing, token routing, token dispatch (1), token dispatch (2), token combine "
            "(1), token combine (2), MP-AllGather (1), MP-AllGather (2), MP-AllGather of the "
            "gate's sums");
  EXPECT_EQ(exchangesOf("S1", kBackward, {.dropless = true, .chunks = 2, .routed = true}),
            "token dispatch (1), token dispatch (2), token combine (1), token combine (2), "
            "MP-AllGather (1), MP-AllGather (2), MP-AllReduce of the gate's gradient");
}

TEST(Schedules, WaitForNoMoreThanTheyNeed) {
  for (const auto& [name, schedule] : everySchedule())
    for (std::size_t i = 0; i < schedule.phases.size(); ++i)
      for (const int other : schedule.phases[i].after) {
        EXPECT_LT(other, static_cast<int>(i)) << name;
        EXPECT_NE(schedule.phases[static_cast<std::size_t>(other)].stream,
                  schedule.phases[i].stream)
            << name << " phase " << i;
        Schedule less = schedule;
        std::erase(less.phases[i].after, other);
        EXPECT_FALSE(earlier(less)[i][static_cast<std::size_t>(other)]) << name << " phase " << i;
      }
}

TEST(Schedules, AreMadeOnce) {
  const Entry& s1 = *find("S1");
  const Schedule& first = known(s1, kBackward, {.chunks = 2});
  EXPECT_EQ(&first, &known(s1, kBackward, {.chunks = 2}));
  EXPECT_EQ(first, scheduleOf(s1, kBackward, {.chunks = 2}));
  EXPECT_NE(&first, &known(s1, kBackward, {}));
}

TEST(Schedules, ArePrinted) {
  std::ostringstream text, dot;
  const Schedule s2 = scheduleOf(*find("S2"), kForward);
  printText(text, s2);
  EXPECT_EQ(text.str(),
            R"(schedule S2, forward: 6 phases, 1 stream
  input [tokens][M] (MP replicated) given
  gate [gate] (MP replicated) weights
  routing [tokens][k] (MP replicated)
  sums [sums] (MP replicated)
  rows [N_EP][E_local][N_MP][T/N_MP][M] (MP replicated)
  given [E_local][P][T/N_MP][M] (ESP replicated)
  made [E_local][P][T/N_MP][M] (ESP partial sums)
  back [N_EP][E_local][N_MP][T/N_MP][M] (MP replicated)
  output [tokens][M] (MP replicated)
  0 [stream 0] gate: input, gate -> routing, sums
  1 [stream 0] permute: input, routing -> rows
  2 [stream 0] exchange "dispatch", splitdispatch of all ranks: rows -> given
  3 [stream 0] experts: given -> made
  4 [stream 0] exchange "SAA", combineallgather of all ranks: made -> back
  5 [stream 0] combine: back, routing -> output
)");
  printDot(dot, s2);
  EXPECT_EQ(dot.str().find("digraph schedule {"), 0u);
  for (std::size_t i = 0; i < s2.phases.size(); ++i)
    EXPECT_NE(dot.str().find("p" + std::to_string(i) + " [label="), std::string::npos) << dot.str();
  EXPECT_NE(dot.str().find("p2 -> p3 [label=\"given\\n[E_local]"), std::string::npos) << dot.str();
}

}  // namespace
}  // namespace moeccl::schedules

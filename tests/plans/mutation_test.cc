// How much of what can go wrong does the verifier see? Every plan of every algorithm is spoiled in
// every small way; a mutant that the verifier accepts must be explained by a rule, and it must run
// right when it is interpreted in random orders on both machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <set>

#include "src/verify/job.h"
#include "tests/plans/interpreter.h"
#include "tests/plans/mutations.h"
#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

constexpr int kInterpretations = 8;

// Enough to come by all code.
std::vector<Topology> smallTopology() { return {Topology::uneven(std::vector{3, 1})}; }
// Even, uneven, one rank per node, prime, scattered.
std::vector<Topology> topologies() {
  return {Topology::even(1, 1),
          Topology::even(1, 2),
          Topology::even(2, 2),
          Topology::even(2, 3),
          Topology::even(4, 1),
          Topology::even(1, 5),
          Topology::even(7, 1),
          roundRobin(6, 3),
          Topology::uneven(std::vector{3, 1, 2}),
          roundRobin(7, 2),
          Topology::uneven(std::vector{1, 4})};
}

// With groups of 2 or 3 where the ranks allow it.
Parameters parametersFor(const Algorithm& algorithm, const Topology& topology) {
  Parameters parameters;
  parameters.chunks = 2;
  if (hasRoot(algorithm.collective)) parameters.root = topology.ranks() / 2;
  if (!needsGrid(algorithm.collective)) return parameters;
  const int ranks = topology.ranks();
  const int group = ranks % 2 == 0 ? 2 : ranks % 3 == 0 ? 3 : 1;
  parameters.grid = {group, ranks / group, group, true};
  parameters.experts = ranks < 6 ? 2 : 1;
  return parameters;
}

std::string interpretBothWays(const Contract& contract, const std::vector<Plan>& plans,
                              std::mt19937& random, int times = kInterpretations) {
  std::string wrong;
  for (Machine machine : {Machine::byDependencies, Machine::byStreams})
    if (wrong.empty()) wrong = interpret(contract, plans, machine, random, times);
  return wrong;
}

bool stepsFollowDependencies(const Plan& plan) {
  for (const Op& op : plan.ops)
    for (OpRange range : plan.deps(op))
      for (int d = range.first; d < range.first + range.count; ++d)
        if (plan.ops[d].lane == op.lane && plan.ops[d].step >= op.step) return false;
  return true;
}

// Whether the lists differ only in own blocks, taken from the input instead of a copy in scratch.
bool readsOriginalsOfCopies(std::span<const Blocks> before, std::span<const Blocks> after,
                            const Plan& plan, int rank) {
  verification::Walk was(before), is(after);
  for (; !was.done() && !is.done(); was.next(), is.next()) {
    const bool same = was.buffer() == is.buffer() && was.block() == is.block();
    const bool original = was.buffer() == Buffer::scratch && is.buffer() == Buffer::input &&
                          plan.scratch[was.block()] == Payload{rank, is.block()};
    if (!same && !original) return false;
  }
  return was.done() && is.done();
}

std::vector<std::pair<Buffer, int>> blocksOf(std::span<const Blocks> runs) {
  std::vector<std::pair<Buffer, int>> blocks;
  for (verification::Walk walk(runs); !walk.done(); walk.next())
    blocks.emplace_back(walk.buffer(), walk.block());
  return blocks;
}

// Whether the lists name the same payloads, of which several blocks may hold one.
bool holdTheSame(std::span<const Blocks> before, std::span<const Blocks> after, const Plan& plan,
                 int rank, const Promise& promise) {
  const auto payloadsOf = [&](std::span<const Blocks> runs) {
    std::vector<Payload> payloads;
    for (const auto& [buffer, block] : blocksOf(runs)) {
      std::vector<Payload> held = {{rank, block}};
      if (buffer == Buffer::scratch) held = {plan.scratch[static_cast<size_t>(block)]};
      if (buffer == Buffer::output) held.clear(), promise.expected(rank, block, held);
      for (const Payload& payload : held)
        payloads.push_back(promise.identity ? promise.identity(payload) : payload);
    }
    return payloads;
  };
  return payloadsOf(before) == payloadsOf(after);
}

// Whether `op` waits for `earlier`, directly or by way of others.
bool dependsOn(const Plan& plan, int op, int earlier) {
  for (OpRange range : plan.deps(plan.ops[op]))
    for (int d = range.first; d < range.first + range.count; ++d)
      if (d == earlier || (d > earlier && dependsOn(plan, d, earlier))) return true;
  return false;
}

// Whether the op reads a block that one of the ops writes that it no longer depends on.
bool readsWhatWasDropped(const Plan& original, const Plan& mutant, int op) {
  const auto read = blocksOf(original.src(original.ops[op]));
  for (int earlier = 0; earlier < op; ++earlier) {
    if (!dependsOn(original, op, earlier) || dependsOn(mutant, op, earlier)) continue;
    for (const auto& written : blocksOf(original.dst(original.ops[earlier])))
      if (std::ranges::find(read, written) != read.end()) return true;
  }
  return false;
}

// Whether each result of a reduction still has the same terms.
bool addsTheSame(const Plan& original, const Plan& mutant, int op) {
  const auto terms = [op](const Plan& plan) {
    const auto from = blocksOf(plan.src(plan.ops[op])), to = blocksOf(plan.dst(plan.ops[op]));
    std::map<std::pair<Buffer, int>, std::multiset<std::pair<Buffer, int>>> sums;
    for (size_t i = 0; i < from.size(); ++i) sums[to[i % to.size()]].insert(from[i]);
    return sums;
  };
  return terms(original) == terms(mutant);
}

// Whether scratch differs only in whose contribution to a sum a block is as large as.
bool sizesAreThoseOfOneSum(const Plan& original, const Plan& mutant) {
  for (size_t i = 0; i < original.scratch.size(); ++i)
    if (original.scratch[i].block != mutant.scratch[i].block) return false;
  return true;
}

// Whether scratch differs only in which of several inputs that hold the same a block is as large
// as.
bool sizesAreThoseOfOneInput(const Plan& original, const Plan& mutant, const Promise& promise) {
  if (!promise.identity) return false;
  for (size_t i = 0; i < original.scratch.size(); ++i)
    if (promise.identity(original.scratch[i]) != promise.identity(mutant.scratch[i])) return false;
  return true;
}

// Why a mutant may be as good as the original; empty where there is no reason.
std::string explain(const Mutant& mutant, const Plan& original, const Promise& promise) {
  if (mutant.kind == "resize scratch" && promise.sums &&
      sizesAreThoseOfOneSum(original, mutant.plan))
    return "contributions to one sum are equally large";
  if (mutant.kind == "resize scratch" && sizesAreThoseOfOneInput(original, mutant.plan, promise))
    return "inputs that hold the same are equally large";
  if (mutant.op < 0 || mutant.op >= static_cast<int>(mutant.plan.ops.size())) return "";
  const Op& op = mutant.plan.ops[mutant.op];
  if (mutant.kind == "drop dependency") {
    if (readsWhatWasDropped(original, mutant.plan, mutant.op)) return "";
    return "throttles only: the op reads nothing of what it no longer waits for";
  }
  if (mutant.kind == "swap blocks" && op.kind == OpKind::reduce && !promise.ordered &&
      addsTheSame(original, mutant.plan, mutant.op))
    return "the terms of a sum may come in any order";
  if (mutant.kind == "change buffer" &&
      readsOriginalsOfCopies(original.src(original.ops[mutant.op]), mutant.plan.src(op), original,
                             mutant.rank))
    return "an own block is read from the input instead of from its copy in scratch";
  if (!promise.sums && (mutant.kind == "swap blocks" || mutant.kind == "replace block" ||
                        mutant.kind == "change buffer")) {
    const Op& was = original.ops[mutant.op];
    const auto same = [&](auto list) {
      return holdTheSame((original.*list)(was), (mutant.plan.*list)(op), original, mutant.rank,
                         promise);
    };
    if (same(&Plan::src) && same(&Plan::dst)) return "the blocks hold the same";
  }
  if (mutant.kind == "change lane" && (op.kind == OpKind::copy || op.kind == OpKind::reduce))
    return "a local op is ordered by its dependencies, whatever its lane";
  if ((mutant.kind == "earlier step" || mutant.kind == "later step") &&
      stepsFollowDependencies(mutant.plan))
    return "steps still follow the dependencies, and only throttle";
  return "";
}

struct Row {
  int total = 0, caught = 0, explained = 0;

  void operator+=(const Row& row) {
    total += row.total;
    caught += row.caught;
    explained += row.explained;
  }
};

using Table = std::map<std::string, Row>;

void print(const std::string& name, const Row& row) {
  const double rest = row.total - row.explained;
  std::cout << std::left << std::setw(24) << name << std::right << std::setw(10) << row.total
            << std::setw(10) << row.caught << std::setw(11) << row.explained << std::setw(15)
            << std::fixed << std::setprecision(2) << (rest > 0 ? 100 * row.caught / rest : 100)
            << "%\n";
}

void print(const std::string& title, const Table& table) {
  std::cout << std::left << std::setw(24) << title << std::right << std::setw(10) << "mutants"
            << std::setw(10) << "caught" << std::setw(11) << "explained" << std::setw(16)
            << "of those left"
            << "\n";
  for (const auto& [name, row] : table) print(name, row);
}

void areCaughtOrExplained(const std::vector<Topology>& topologies) {
  std::mt19937 random(11);
  Table byKind, byAlgorithm, reasons;
  Row all;
  int unexplained = 0;
  for (const Algorithm& algorithm : algorithms())
    for (const Topology& topology : topologies)
      for (int window : {16, 2}) {
        const Parameters usual = parametersFor(algorithm, topology);
        Parameters parameters = usual;
        parameters.window = window;
        auto plans = plansOf(algorithm, topology, parameters);
        if (!plans || (window == 2 && plans == plansOf(algorithm, topology, usual))) continue;
        const Contract contract = contractOf(algorithm.collective, topology, parameters);
        const Promise promise = promiseOf(contract);
        ASSERT_EQ(text(verify(promise, *plans)), "");
        ASSERT_EQ(interpretBothWays(contract, *plans, random), "") << nameOf(algorithm);
        const std::vector<Plan> originals = *plans;
        const auto judge = [&](const Mutant& mutant) {
          (*plans)[mutant.rank] = mutant.plan;
          const auto violations = verify(promise, *plans);
          Row row{.total = 1};
          if (!violations.empty()) {
            row.caught = 1;
            EXPECT_EQ(violations[0].text.rfind("rank " + std::to_string(violations[0].rank), 0), 0u)
                << violations[0].text;
          } else {
            const std::string reason = explain(mutant, originals[mutant.rank], promise);
            const std::string wrong = interpretBothWays(contract, *plans, random);
            row.explained = !reason.empty() && wrong.empty();
            if (row.explained) reasons[reason] += Row{1, 0, 1};
            if (!row.explained && ++unexplained <= 20)
              ADD_FAILURE() << nameOf(algorithm) << ", nodes of the ranks: " << nameOf(topology)
                            << ", window " << window << ": accepted after \"" << mutant.kind
                            << "\" at rank " << mutant.rank << " op " << mutant.op << " ("
                            << (mutant.op < 0 ? "" : describe(originals[mutant.rank], mutant.op))
                            << "); " << (wrong.empty() ? "it runs right" : wrong);
          }
          byKind[std::string(mutant.kind)] += row;
          all += row;
          byAlgorithm[nameOf(algorithm)] += row;
          (*plans)[mutant.rank] = originals[mutant.rank];
        };
        for (int rank = 0; rank < topology.ranks(); ++rank)
          forEachMutant(contract, rank, originals[rank], judge);
      }
  print("mutation", byKind);
  print("algorithm", byAlgorithm);
  print("all", all);
  for (const auto& [reason, row] : reasons)
    std::cout << std::setw(6) << row.total << "  " << reason << "\n";
  EXPECT_EQ(unexplained, 0);
  EXPECT_GE(all.caught, 0.99 * (all.total - all.explained));
}

TEST(Mutations, AreCaughtOrExplained) { areCaughtOrExplained(smallTopology()); }
TEST(Mutations, SlowAreCaughtOrExplained) { areCaughtOrExplained(topologies()); }

// Many mutations on top of each other, as long as the verifier accepts them; the interpreter must
// agree at every turn, with what is accepted and with what is said to wait in a circle.
void piledUpAreJudgedAsTheyRun(const std::vector<Topology>& topologies) {
  std::mt19937 random(8);
  const auto any = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  int accepted = 0, circles = 0, orders = 0, others = 0;
  for (const Algorithm& algorithm : algorithms())
    for (const Topology& topology : topologies) {
      const Parameters parameters = parametersFor(algorithm, topology);
      auto plans = plansOf(algorithm, topology, parameters);
      if (!plans) continue;
      const Contract contract = contractOf(algorithm.collective, topology, parameters);
      for (int turn = 0; turn < 60; ++turn) {
        const auto rank = static_cast<int>(any(plans->size()));
        std::vector<Plan> mutants;
        forEachMutant(contract, rank, (*plans)[rank], [&](const Mutant& mutant) {
          if (mutant.kind == "earlier step" || mutant.kind == "later step" ||
              mutant.kind == "drop dependency" || mutant.kind == "change buffer")
            mutants.push_back(mutant.plan);
        });
        if (mutants.empty()) continue;
        std::vector<Plan> changed = *plans;
        changed[rank] = mutants[any(mutants.size())];
        const auto violations = verify(contract, changed);
        if (violations.empty()) {
          ++accepted;
          EXPECT_EQ(interpretBothWays(contract, changed, random), "");
          *plans = changed;
        } else if (violations[0].text.find("cyclic wait of streams") != std::string::npos) {
          ++circles;
          EXPECT_EQ(interpret(contract, changed, Machine::byDependencies, random), "");
          EXPECT_EQ(interpret(contract, changed, Machine::byStreams, random).substr(0, 6), "stuck:")
              << text(violations);
        } else if (violations[0].text.find("cyclic wait of launches") != std::string::npos) {
          // What runs lanes at once, as the interpreter does, takes no notice.
          ++orders;
          EXPECT_EQ(interpretBothWays(contract, changed, random), "");
        } else {
          ++others;
        }
      }
    }
  std::cout << accepted << " accepted, " << orders << " refused as launches, " << circles
            << " refused as circles, " << others << " refused for other reasons\n";
  EXPECT_GT(accepted, 100);
  EXPECT_GT(circles, 10);
}

TEST(Mutations, PiledUpAreJudgedAsTheyRun) { piledUpAreJudgedAsTheyRun(smallTopology()); }
TEST(Mutations, WidePiledUpAreJudgedAsTheyRun) { piledUpAreJudgedAsTheyRun(topologies()); }

// The interpreter must be able to contradict: where a mutation certainly matters, it goes wrong in
// some order.
TEST(Interpreter, SeesWhatGoesWrong) {
  std::mt19937 random(3);
  const Contract contract{Collective::allToAll, 4};
  const auto plans =
      plansOf(*findAlgorithm(Collective::allToAll, "hierarchical"), Topology::even(2, 2));
  std::map<std::string, int> wrong, total;
  const auto run = [&](const Mutant& mutant) {
    if (mutant.kind != "drop op" && mutant.kind != "drop dependency" &&
        mutant.kind != "swap blocks" && mutant.kind != "resize scratch")
      return;
    std::vector<Plan> changed = *plans;
    changed[mutant.rank] = mutant.plan;
    ++total[std::string(mutant.kind)];
    wrong[std::string(mutant.kind)] += !interpretBothWays(contract, changed, random, 1000).empty();
  };
  for (int rank = 0; rank < contract.ranks; ++rank)
    forEachMutant(contract, rank, (*plans)[rank], run);
  for (const auto& [kind, count] : total) EXPECT_EQ(wrong[kind], count) << kind;
}

}  // namespace
}  // namespace moeccl::testing

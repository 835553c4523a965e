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
#include "tests/plans/route_job.h"
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

std::string interpretBothWays(const Promise& promise, const std::vector<Plan>& plans,
                              std::mt19937& random, int times = kInterpretations) {
  std::string wrong;
  for (Machine machine : {Machine::byDependencies, Machine::byStreams})
    if (wrong.empty()) wrong = interpret(promise, plans, machine, random, times);
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
  if (mutant.kind == "resize scratch" && promise.uniform) return "all blocks are equally large";
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

// Plans of all ranks that keep a promise.
struct Subject {
  std::string name, where;
  Promise promise;
  std::vector<Plan> plans;
};

class Judgement {
 public:
  // All mutants of all ranks' plans.
  void judge(const Subject& subject) {
    ASSERT_EQ(text(verify(subject.promise, subject.plans)), "") << subject.name;
    ASSERT_EQ(interpretBothWays(subject.promise, subject.plans, random_), "") << subject.name;
    std::vector<Plan> plans = subject.plans;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      const auto judgeOne = [&](const Mutant& mutant) {
        plans[rank] = mutant.plan;
        const Row row = rowOf(subject, plans, mutant);
        byKind_[std::string(mutant.kind)] += row;
        byName_[subject.name] += row;
        all_ += row;
      };
      forEachMutant(subject.promise, static_cast<int>(rank), subject.plans[rank], judgeOne);
      plans[rank] = subject.plans[rank];
    }
  }

  void expectFewLeft() const {
    print("mutation", byKind_);
    print("plans of", byName_);
    print("all", all_);
    for (const auto& [reason, row] : reasons_)
      std::cout << std::setw(6) << row.total << "  " << reason << "\n";
    EXPECT_EQ(unexplained_, 0);
    EXPECT_GE(all_.caught, 0.99 * (all_.total - all_.explained));
  }

 private:
  Row rowOf(const Subject& subject, const std::vector<Plan>& plans, const Mutant& mutant) {
    const auto violations = verify(subject.promise, plans);
    if (!violations.empty()) {
      EXPECT_EQ(violations[0].text.rfind("rank " + std::to_string(violations[0].rank), 0), 0u)
          << violations[0].text;
      return {.total = 1, .caught = 1};
    }
    const Plan& original = subject.plans[static_cast<size_t>(mutant.rank)];
    const std::string reason = explain(mutant, original, subject.promise);
    const std::string wrong = interpretBothWays(subject.promise, plans, random_);
    if (!reason.empty() && wrong.empty()) {
      reasons_[reason] += Row{1, 0, 1};
      return {.total = 1, .explained = 1};
    }
    if (++unexplained_ <= 20)
      ADD_FAILURE() << subject.name << ", nodes of the ranks: " << subject.where
                    << ": accepted after \"" << mutant.kind << "\" at rank " << mutant.rank
                    << " op " << mutant.op << " ("
                    << (mutant.op < 0 ? "" : describe(original, mutant.op)) << "); "
                    << (wrong.empty() ? "it runs right" : wrong);
    return {.total = 1};
  }

  std::mt19937 random_{11};
  Table byKind_, byName_, reasons_;
  Row all_;
  int unexplained_ = 0;
};

void areCaughtOrExplained(const std::vector<Topology>& topologies) {
  Judgement judgement;
  for (const Algorithm& algorithm : algorithms())
    for (const Topology& topology : topologies)
      for (int window : {16, 2}) {
        const Parameters usual = parametersFor(algorithm, topology);
        Parameters parameters = usual;
        parameters.window = window;
        const auto plans = plansOf(algorithm, topology, parameters);
        if (!plans || (window == 2 && plans == plansOf(algorithm, topology, usual))) continue;
        judgement.judge({nameOf(algorithm), nameOf(topology) + ", window " + std::to_string(window),
                         promiseOf(contractOf(algorithm.collective, topology, parameters)),
                         *plans});
      }
  judgement.expectFewLeft();
}

// Two choices of three tokens in two chunks: of an expert of each node, of one twice, of none.
Routing smallRouting(const Topology& topology, int esp) {
  Routing r{.topology = topology, .experts = {}, .choices = 2, .chunks = 2, .chosen = {}};
  r.experts = {{.ep = topology.ranks() / esp, .esp = esp}, 2 * topology.ranks() / esp + 1};
  const int last = r.experts.count - 1;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    r.chosen.push_back({rank % r.experts.count, last, last, 0, -1, (rank + 2) % r.experts.count});
    if (rank == 1) r.chosen.back().clear();
  }
  return r;
}

void plansOfRoutesAreCaughtOrExplained(const std::vector<Topology>& topologies) {
  Judgement judgement;
  for (const Topology& topology : topologies)
    for (const routes::RouteAlgorithm& algorithm : routes::routeAlgorithms()) {
      const std::string way = " (" + std::string(algorithm.name) + ")";
      for (const int esp : {1, 2}) {
        if (topology.ranks() % esp != 0) continue;
        const Routing routing = smallRouting(topology, esp);
        const Job job(routing, algorithm.way());
        const Truth truth(routing);
        const Promises promises(routing, truth);
        const std::string where = nameOf(topology) + ", esp " + std::to_string(esp);
        judgement.judge(
            {"dispatch" + way, where, promises.dispatch, job.plans(routes::dispatchPlan)});
        judgement.judge({"combine" + way, where, promises.combine,
                         job.plans([](const routes::Knowledge& known) {
                           return routes::combinePlan(known).plan;
                         })});
        judgement.judge(
            {"gradients of weights", where, promises.back, job.plans(routes::returnPlan)});
      }
      // What a block holds only messages say: rows for experts of a rank, which a message has once
      // though several blocks of it hold them, and sums of rows that a relay makes of its blocks.
      std::vector<Plan> dispatch, combine;
      for (int rank = 0; rank < topology.ranks(); ++rank) {
        dispatch.push_back(routes::latencyDispatchPlan(topology, algorithm.way(), rank));
        combine.push_back(routes::latencyCombinePlan(topology, algorithm.way(), rank));
      }
      const Promise all = everyPair(topology.ranks());
      judgement.judge({"latency dispatch" + way, nameOf(topology), all, dispatch});
      judgement.judge({"latency combine" + way, nameOf(topology), all, combine});
    }
  judgement.expectFewLeft();
}

TEST(Mutations, OfRoutesAreCaughtOrExplained) {
  plansOfRoutesAreCaughtOrExplained(smallTopology());
}
TEST(Mutations, SlowOfRoutesAreCaughtOrExplained) {
  plansOfRoutesAreCaughtOrExplained(topologies());
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
      const Promise promise = promiseOf(contractOf(algorithm.collective, topology, parameters));
      for (int turn = 0; turn < 60; ++turn) {
        const auto rank = static_cast<int>(any(plans->size()));
        std::vector<Plan> mutants;
        forEachMutant(promise, rank, (*plans)[rank], [&](const Mutant& mutant) {
          if (mutant.kind == "earlier step" || mutant.kind == "later step" ||
              mutant.kind == "drop dependency" || mutant.kind == "change buffer")
            mutants.push_back(mutant.plan);
        });
        if (mutants.empty()) continue;
        std::vector<Plan> changed = *plans;
        changed[rank] = mutants[any(mutants.size())];
        const auto violations = verify(promise, changed);
        if (violations.empty()) {
          ++accepted;
          EXPECT_EQ(interpretBothWays(promise, changed, random), "");
          *plans = changed;
        } else if (violations[0].text.find("cyclic wait of streams") != std::string::npos) {
          ++circles;
          EXPECT_EQ(interpret(promise, changed, Machine::byDependencies, random), "");
          EXPECT_EQ(interpret(promise, changed, Machine::byStreams, random).substr(0, 6), "stuck:")
              << text(violations);
        } else if (violations[0].text.find("cyclic wait of launches") != std::string::npos) {
          // What runs lanes at once, as the interpreter does, takes no notice.
          ++orders;
          EXPECT_EQ(interpretBothWays(promise, changed, random), "");
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
  const Promise promise = promiseOf(Contract{Collective::allToAll, 4});
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
    wrong[std::string(mutant.kind)] += !interpretBothWays(promise, changed, random, 1000).empty();
  };
  for (int rank = 0; rank < promise.ranks; ++rank)
    forEachMutant(promise, rank, (*plans)[rank], run);
  for (const auto& [kind, count] : total) EXPECT_EQ(wrong[kind], count) << kind;
}

}  // namespace
}  // namespace moeccl::testing

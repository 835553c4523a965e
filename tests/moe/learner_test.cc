// What layers learn, on clusters that are not there: layers are priced on the links that a profile
// believes in, and take what they are priced at on others.
#include "src/route/learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/model/layer_question.h"

namespace moeccl {
namespace {

// Predictions and truth of one layer, by alternative.
struct Simulated {
  std::vector<Alternative> predicted, real;

  double seconds(std::size_t alternative) const { return real[alternative].seconds({}); }
  std::size_t fastest(const std::vector<Alternative>& among) const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < among.size(); ++i)
      if (among[i].seconds({}) < among[best].seconds({})) best = i;
    return best;
  }
};

std::vector<Alternative> priced(const moecclMoeConfig_t& config, const moecclGridShape_t& grid,
                                const Links& links, bool measured) {
  const Topology topology(std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1});
  const Subject subject = subjectOf(
      {config, config.training == 1 ? moecclPassBoth : moecclPassForward, moecclScheduleAuto},
      grid);
  LayerModel model(Cluster{topology, grid, {}, nullptr, 4, {.links = links}});
  std::vector<Alternative> all;
  for (auto& it :
       model.candidates(subject.offered, subject.passes, {.chunks = false, .routing = false})) {
    it.costs.measured = measured;
    all.push_back(std::move(it.costs));
  }
  return all;
}

// Random layers of 8 ranks on two nodes.
moecclMoeConfig_t randomLayer(std::mt19937& random, moecclGridShape_t& grid) {
  const auto oneOf = [&](std::initializer_list<std::int64_t> all) {
    return all.begin()[random() % all.size()];
  };
  const auto nEsp = static_cast<int>(oneOf({1, 2, 4, 8}));
  grid = {static_cast<int>(oneOf({2, 4, 8})), 8 / nEsp, nEsp, moecclOrderEspEp};
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = oneOf({64, 256, 1024});
  config.embedding = oneOf({64, 128, 512});
  config.hidden = oneOf({64, 256, 1024});
  config.experts = 8 * oneOf({1, 2, 4});
  config.topK = oneOf({1, 2});
  config.capacityFactor = static_cast<double>(oneOf({1, 2, 4, 8})) / 4;
  config.training = static_cast<int>(random() % 2);
  config.learn = 1;
  return config;
}

Links gigabit(double gigabits) {
  Links links;
  links.betaUplink = 8e-9 / gigabits;
  return links;
}

// The ranks of a job that learns, each with a learner of its own.
class Job {
 public:
  Job(Simulated layer, double noise, unsigned seed)
      : layer_(std::move(layer)), noise_(noise), random_(seed) {
    const std::size_t first = layer_.fastest(layer_.predicted);
    for (int rank = 0; rank < kRanks; ++rank)
      ranks_.emplace_back("layer", layer_.predicted, first, kRanks);
    sums_.resize(ranks_[0].size());
  }

  // Factors of the true times, from now on.
  void slow(const Corrections& factors) { truth_ = factors; }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }
  const Learner& learner() const { return ranks_[0]; }
  Learner& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  double secondsNow() const { return seconds(learner().current()); }
  double seconds(std::size_t alternative) const { return layer_.real[alternative].seconds(truth_); }
  double best() const {
    double best = 1e30;
    for (std::size_t i = 0; i < layer_.real.size(); ++i) best = std::min(best, seconds(i));
    return best;
  }
  double trialShare() const { return trials_ / all_; }
  int trialSteps() const { return trialSteps_; }
  // Steps at whose beginning the layer changed.
  const std::vector<int>& changes() const { return changes_; }

  static constexpr int kRanks = 3;

 private:
  void step() {
    const std::size_t before = learner().current();
    bool over = false;
    for (Learner& rank : ranks_) over = rank.begin();
    if (over) {
      std::vector<std::int64_t> mine(sums_.size()), next(sums_.size());
      for (Learner& rank : ranks_) {
        rank.apply(sums_);
        if (rank.wanted()) rank.setReady(true);
        rank.write(mine);
        for (std::size_t i = 0; i < mine.size(); ++i) next[i] += mine[i];
      }
      sums_ = next;
    }
    if (learner().current() != before) changes_.push_back(step_);
    const std::size_t now = learner().running();
    const double took = seconds(now);
    all_ += took;
    if (now != learner().current()) {
      trials_ += took;
      ++trialSteps_;
    }
    for (Learner& rank : ranks_) {
      ASSERT_EQ(rank.running(), now);
      for (const Pass pass : {Pass::forward, Pass::backward})
        if (!layer_.real[now].phases[static_cast<std::size_t>(pass)].empty())
          rank.record(now, pass, times(now, pass));
    }
    ++step_;
  }

  std::vector<std::int64_t> times(std::size_t alternative, Pass pass) {
    std::lognormal_distribution<double> noise(0, noise_);
    std::vector<std::int64_t> all;
    const auto& phases = layer_.real[alternative].phases[static_cast<std::size_t>(pass)];
    for (const Alternative::Phase& phase : phases)
      all.push_back(std::llround(truth_.seconds(phase.predicted) * noise(random_) * 1e9));
    all.push_back(std::llround(layer_.real[alternative].besidePhases / 2 * 1e9));
    // Now and then something else has the processor.
    if (random_() % 20 == 0) all[random_() % all.size()] += 20'000'000;
    return all;
  }

  Simulated layer_;
  double noise_;
  std::mt19937 random_;
  Corrections truth_;
  std::vector<Learner> ranks_;
  std::vector<std::int64_t> sums_;
  int step_ = 0, trialSteps_ = 0;
  double all_ = 0, trials_ = 0;
  std::vector<int> changes_;
};

Corrections factor(std::initializer_list<Cost> costs, double value) {
  Corrections all;
  for (const Cost cost : costs) all.of[static_cast<std::size_t>(cost)] = value;
  return all;
}
Corrections inNode(double times) { return factor({Cost::latencyInNode, Cost::bytesInNode}, times); }
Corrections localWork(double times) {
  return factor({Cost::gateForward, Cost::expertsForward, Cost::movesForward, Cost::gateBackward,
                 Cost::expertsBackward, Cost::movesBackward},
                times);
}

// What is predicted by, and what is so.
struct Believed {
  const char* name;
  Links believed, real;
  Corrections truth;
  bool measured;
  // Whether one schedule shows it. Else a trial of another one must, which comes later.
  bool isSeen = true;
};
void PrintTo(const Believed& it, std::ostream* out) { *out << it.name; }

class Clusters : public testing::TestWithParam<Believed> {};

// The choice of some layers is wrong to begin with, by more than noise and what a change must gain,
// and that of others is right.
TEST_P(Clusters, RunTheFastestScheduleWithin200Steps) {
  constexpr int kWrong = 8, kRight = 8;
  std::mt19937 random(1);
  int wrong = 0, right = 0, mended = 0, spoilt = 0, late = 0;
  for (int i = 0; i < 2000 && wrong < kWrong; ++i) {
    moecclGridShape_t grid;
    const moecclMoeConfig_t config = randomLayer(random, grid);
    const Simulated layer{priced(config, grid, GetParam().believed, GetParam().measured),
                          priced(config, grid, GetParam().real, GetParam().measured)};
    ASSERT_EQ(layer.predicted.size(), layer.real.size());
    if (layer.real.size() < 2) continue;
    Job job(layer, 0.03, random());
    job.slow(GetParam().truth);
    const bool isWrong = job.secondsNow() > 1.1 * job.best();
    if (!isWrong && right == kRight) continue;
    (isWrong ? wrong : right) += 1;
    job.run(200);
    if (HasFatalFailure()) return;
    mended += isWrong && job.secondsNow() <= 1.06 * job.best();
    spoilt += !isWrong && job.secondsNow() > 1.1 * job.best();
    EXPECT_LE(job.changes().size(), 2U);
    const int changesBefore = job.learner().changes();
    job.run(GetParam().isSeen ? 500 : 2000);
    late += isWrong && job.secondsNow() <= 1.06 * job.best();
    EXPECT_LE(job.learner().changes() - changesBefore, 1) << "it oscillates";
    EXPECT_LE(job.trialShare(), Learner::kTrialShare);
  }
  EXPECT_EQ(wrong, kWrong) << "there is too little to learn";
  EXPECT_GE(GetParam().isSeen ? mended : late, kWrong - 1);
  EXPECT_EQ(spoilt, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, Clusters,
                         testing::Values(Believed{
                             "no profile, slow network", Links{}, gigabit(0.1), {}, false}));
INSTANTIATE_TEST_SUITE_P(
    Wide, Clusters,
    testing::Values(
        Believed{"a network ten times as fast", gigabit(0.1), gigabit(1), {}, true},
        Believed{"a network ten times as slow", gigabit(1), gigabit(0.1), {}, true},
        Believed{"nodes ten times as slow", gigabit(1), gigabit(1), inNode(10), true, false},
        Believed{"processors ten times as fast", gigabit(1), gigabit(1), localWork(0.1), true,
                 false},
        Believed{"processors ten times as slow", gigabit(1), gigabit(1), localWork(10), true},
        Believed{"no profile, slow nodes", Links{}, gigabit(1), inNode(10), false},
        Believed{"no profile, slow processors", Links{}, gigabit(1), localWork(10), false}));

TEST(RightProfiles, ChangeNothingAndTryNothing) {
  std::mt19937 random(2);
  for (const double gigabits : {0.1, 1.0, 10.0})
    for (int i = 0; i < 20; ++i) {
      moecclGridShape_t grid;
      const moecclMoeConfig_t config = randomLayer(random, grid);
      const auto costs = priced(config, grid, gigabit(gigabits), true);
      if (costs.size() < 2) continue;
      Job job({costs, costs}, 0.1, random());
      job.run(1000);
      if (HasFatalFailure()) return;
      EXPECT_TRUE(job.changes().empty()) << job.learner().explain();
      EXPECT_EQ(job.trialSteps(), 0);
    }
}

// A layer of two schedules, of which one has its time in the network and the other in its experts.
Simulated twoSchedules() {
  const auto alternative = [](const char* name, double between, double experts) {
    Alternative it;
    it.name = name;
    for (const bool backward : {false, true}) {
      Costs exchange, compute;
      exchange[Cost::bytesBetween] = between;
      compute[backward ? Cost::expertsBackward : Cost::expertsForward] = experts;
      it.phases[backward ? 1 : 0] = {{"exchange", exchange}, {"experts", compute}};
    }
    it.measured = true;
    return it;
  };
  const std::vector<Alternative> both = {alternative("sends", 5e-3, 1e-3),
                                         alternative("computes", 2e-3, 8e-3)};
  return {both, both};
}

// Ranks wait for processors in their experts, and less for each other afterwards.
TEST(RightProfiles, AreBelievedWhereOnlyTheirPartsAreOff) {
  const auto costsOf = [](double between, double experts) {
    Costs costs;
    costs[Cost::bytesBetween] = between;
    costs[Cost::expertsForward] = experts;
    return costs;
  };
  const auto apart = [&](double between, double experts) {
    return std::vector<Alternative::Phase>{{"exchange", costsOf(between, 0)},
                                           {"experts", costsOf(0, experts)}};
  };
  std::vector<Alternative> believed(2);
  for (Alternative& it : believed) it.measured = true;
  believed[0].name = "first";
  believed[1].name = "second";
  std::vector<Alternative> truth = believed;
  believed[0].phases[0] = apart(2e-3, 2e-3);
  believed[1].phases[0] = apart(3.4e-3, 0.8e-3);
  truth[0].phases[0] = apart(1.2e-3, 3e-3);
  truth[1].phases[0] = apart(2.6e-3, 1.6e-3);
  Job job({believed, truth}, 0.02, 5);
  job.run(1000);
  EXPECT_TRUE(job.changes().empty()) << job.learner().explain();
}

// One measured schedule reprices the one that never ran.
TEST(Changes, AreAtTheSameStepAndSayWhy) {
  Job job(twoSchedules(), 0.02, 1);
  job.slow(factor({Cost::bytesBetween}, 4));
  EXPECT_EQ(job.learner().current(), 0U);
  job.run(200);
  EXPECT_EQ(job.changes(), std::vector<int>{4 * Learner::kPeriod});
  EXPECT_EQ(job.learner().current(), 1U);
  EXPECT_NEAR(job.learner().corrections().of[static_cast<std::size_t>(Cost::bytesBetween)], 4, 0.3);
  EXPECT_NE(job.learner().why().find("computes instead of sends"), std::string::npos)
      << job.learner().why();
  EXPECT_NE(job.learner().why().find("bytesBetween"), std::string::npos) << job.learner().why();
  const std::string told = job.learner().explain();
  EXPECT_TRUE(std::regex_search(
      told, std::regex("^computes in [0-9.]+ ms, by learned; then sends in [0-9.]+ ms\n")))
      << told;
  EXPECT_NE(told.find("changed 1 times"), std::string::npos);
}

// The network becomes slow, and fast again.
TEST(Changes, FollowWhatChanges) {
  Job job(twoSchedules(), 0.02, 1);
  job.run(200);
  EXPECT_TRUE(job.changes().empty());
  job.slow(factor({Cost::bytesBetween}, 6));
  job.run(200);
  EXPECT_EQ(job.learner().current(), 1U);
  job.slow({});
  job.run(300);
  EXPECT_EQ(job.learner().current(), 0U);
  EXPECT_EQ(job.changes().size(), 2U);
}

// Two schedules that take the same, on a machine that is another one every few steps.
TEST(Changes, AreFewWhereOthersDisturb) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Simulated layer = twoSchedules();
    for (auto* all : {&layer.predicted, &layer.real}) {
      (*all)[1] = (*all)[0];
      (*all)[1].name = "the same";
      for (Alternative& it : *all) it.measured = false;
    }
    Job job(layer, 0.1, seed);
    std::mt19937 random(seed);
    std::lognormal_distribution<double> busy(0, 0.3);
    for (int i = 0; i < 500; ++i) {
      const double all = busy(random);
      Corrections slow;
      for (double& it : slow.of) it = all * busy(random);
      job.slow(slow);
      job.run(10);
    }
    EXPECT_LE(job.changes().size(), 6U) << "in 5000 steps";
  }
}

// A rank that has no memory for the other schedule keeps all from it, once and for all.
TEST(Changes, NeedEveryRank) {
  const Simulated layer = twoSchedules();
  std::vector<Learner> ranks(3, Learner("layer", layer.predicted, 0, 3));
  std::vector<std::int64_t> sums(ranks[0].size());
  int asked = 0;
  for (int step = 0; step < 400; ++step) {
    bool over = false;
    for (Learner& rank : ranks) over = rank.begin();
    std::vector<std::int64_t> mine(sums.size()), next(sums.size());
    for (std::size_t i = 0; i < ranks.size() && over; ++i) {
      EXPECT_FALSE(ranks[i].apply(sums));
      if (ranks[i].wanted()) {
        ++asked;
        ranks[i].setReady(i != 1);
      }
      ranks[i].write(mine);
      for (std::size_t at = 0; at < mine.size(); ++at) next[at] += mine[at];
    }
    if (over) sums = next;
    for (Learner& rank : ranks)
      for (const Pass pass : {Pass::forward, Pass::backward})
        rank.record(0, pass, std::vector<std::int64_t>{80'000'000, 1'000'000, 0});
  }
  EXPECT_EQ(asked, 3);
  EXPECT_NE(ranks[0].explain().find("it cannot be taken"), std::string::npos);
}

// Only rounds with a Backward count for a layer in training.
TEST(Measures, NeedBothPasses) {
  Job job(twoSchedules(), 0.02, 1);
  std::vector<std::int64_t> mine(job.learner().size());
  Learner& rank = job.rank(0);
  for (int step = 0; step < 64; ++step) {
    if (rank.begin()) {
      std::vector<std::int64_t> sums = mine;
      for (std::int64_t& sum : sums) sum *= Job::kRanks;
      rank.apply(sums);
      rank.write(mine);
    }
    rank.record(0, Pass::forward, std::vector<std::int64_t>{80'000'000, 1'000'000, 0});
  }
  EXPECT_FALSE(rank.wasMeasured(0));
}

// What was not measured by a profile, and is not much slower, is tried in 2 % of the time.
TEST(Trials, FindWhatPredictionsMiss) {
  Simulated layer = twoSchedules();
  for (Alternative& it : layer.predicted) it.measured = false;
  const auto slowExperts = [](Alternative& it, double times) {
    for (auto& pass : it.phases)
      for (double& cost : pass[1].predicted.of) cost *= times;
  };
  // Experts of the other schedule take a third of what anybody can know.
  slowExperts(layer.predicted[1], 0.6);
  slowExperts(layer.real[1], 0.2);
  Job job(layer, 0.02, 1);
  job.run(300);
  EXPECT_EQ(job.trialSteps(), 0) << "before there is time for it";
  job.run(200);
  EXPECT_EQ(job.trialSteps(), Learner::kTrialSteps) << job.learner().explain();
  EXPECT_LE(job.trialShare(), Learner::kTrialShare);
  EXPECT_EQ(job.learner().current(), 1U);
  EXPECT_EQ(job.changes().size(), 1U);
}

TEST(Corrections, FindTheKindThatIsOff) {
  for (const double off : {0.1, 0.5, 1.0, 3.0, 10.0, 100.0}) {
    Costs small, large, local;
    small[Cost::latencyBetween] = 1e-3;
    small[Cost::bytesBetween] = 1e-3;
    large[Cost::latencyBetween] = 1e-3;
    large[Cost::bytesBetween] = 8e-3;
    local[Cost::expertsForward] = 4e-3;
    const Corrections truth = factor({Cost::bytesBetween}, off);
    std::vector<Observation> seen;
    double all = 0;
    for (const Costs& it : {small, large, local}) all += truth.seconds(it);
    for (const Costs& it : {small, large, local})
      seen.push_back({it, truth.seconds(it), truth.seconds(it) / all});
    const Corrections found = correctionsOf(seen);
    EXPECT_NEAR(std::log(found.of[static_cast<std::size_t>(Cost::bytesBetween)]), std::log(off),
                0.3);
    EXPECT_NEAR(found.of[static_cast<std::size_t>(Cost::expertsForward)], 1, 0.01);
    EXPECT_EQ(found.of[static_cast<std::size_t>(Cost::bytesInNode)], 1) << "nothing was seen of it";
  }
}

TEST(Corrections, StayWithinBounds) {
  Costs cost;
  cost[Cost::bytesBetween] = 1e-9;
  EXPECT_NEAR(correctionsOf(std::vector<Observation>{{cost, 1e9, 1}}).of[3], kMostCorrection, 1);
  EXPECT_EQ(correctionsOf({}).of[0], 1);
  EXPECT_EQ(correctionsOf(std::vector<Observation>{{cost, 0, 1}}).of[3], 1);
}

TEST(Texts, BringBackAllThatWasLearned) {
  Job job(twoSchedules(), 0.02, 1);
  job.slow(factor({Cost::bytesBetween}, 4));
  job.run(200);
  const std::string text = job.learner().save();
  Learner other("layer", twoSchedules().predicted, 0, Job::kRanks);
  other.restore(text);
  EXPECT_EQ(other.save(), text);
  EXPECT_EQ(other.current(), 1U);
  EXPECT_EQ(other.explain(), job.learner().explain());
  EXPECT_EQ(choiceIn(text, "layer"), "computes");
  // And it goes on from there.
  for (int rank = 0; rank < Job::kRanks; ++rank) job.rank(rank).restore(text);
  job.run(300);
  EXPECT_EQ(job.changes().size(), 1U);
}

TEST(Texts, ThatAreWrongSayWhere) {
  Learner learner("layer", twoSchedules().predicted, 0, 3);
  const std::string right = learner.save();
  const auto refused = [&](std::string text, const std::string& why) {
    try {
      learner.restore(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.result(), moecclInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
    EXPECT_EQ(learner.save(), right);
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = right;
    return text.replace(text.rfind(from), from.size(), to);
  };
  refused("", "it ends where");
  refused("{}", "\"moeccl-learned\" should be");
  refused(with("learned 1", "learned 2"), "\"2\" where \"1\"");
  refused(with("layer layer", "layer other"), "\"other\" where \"layer\"");
  refused(with("alternatives sends", "alternatives S9"), "\"S9\" where \"sends\"");
  refused(with("current sends", "current S9"), "S9");
  refused(with("counts 0", "counts -1"), "\"-1\"; it must be a number from 0 to 1e9");
  refused(with("counts 0", "counts 2147483647"), "\"2147483647\"");
  refused(with("seconds 0", "seconds nan"), "\"nan\"");
  refused(with("end", "evidence sends sure 6 1 1e308\nend"), "\"1e308\"");
  refused(with("end", "evidence sends sure 2 1 1\nend"), "2 numbers of sends");
  refused(with("end", "evidence sends sre 1 1\nend"), "\"sre\" where \"sure\" or \"tried\"");
  refused(with("end", "nonsense sends\nend"), "nonsense");
  for (std::size_t length = 0; length + 2 < right.size(); length += 7)
    refused(right.substr(0, length), "");
}

}  // namespace
}  // namespace moeccl

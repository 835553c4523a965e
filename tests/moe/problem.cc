#include "tests/moe/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

#include "kernels/gates/random.h"

namespace moeccl::test {
namespace {

using moe_reference::Layer;
using moe_reference::Result;

class Source {
 public:
  Source(unsigned seed, moecclDataType_t datatype) : random_(seed), datatype_(datatype) {}
  std::vector<double> uniform(std::int64_t count) {
    std::uniform_real_distribution<float> shortValue(-1, 1);
    std::uniform_real_distribution<double> longValue(-1, 1);
    return filled(count, [&]() -> double {
      return datatype_ == moecclFloat64 ? longValue(random_) : shortValue(random_);
    });
  }
  std::vector<double> whole(std::int64_t count) {
    std::uniform_int_distribution<int> value(-1, 1);
    return filled(count, [&] { return static_cast<double>(value(random_)); });
  }
  std::int64_t below(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random_);
  }

 private:
  template <typename Draw>
  std::vector<double> filled(std::int64_t count, Draw draw) {
    std::vector<double> values(count);
    for (double& value : values) value = draw();
    return values;
  }
  std::mt19937 random_;
  moecclDataType_t datatype_;
};

std::vector<double> tokensOf(const Problem& problem, Source& source) {
  const std::int64_t count = problem.tokens * problem.embedding;
  std::vector<double> tokens;
  if (problem.data == Tokens::random) {
    tokens = source.uniform(count);
  } else if (problem.data == Tokens::tied) {
    tokens = source.whole(count);
  } else {
    const std::int64_t words = 5;
    const std::vector<double> vocabulary = source.uniform(words * problem.embedding);
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      const auto word = vocabulary.begin() + source.below(words) * problem.embedding;
      tokens.insert(tokens.end(), word, word + problem.embedding);
    }
  }
  if (problem.hotGate != 0)
    for (double& value : tokens) value = std::abs(value);
  return tokens;
}

// The fields and weights of the problem's gate, none at its default.
void setGate(const Problem& problem, Layer& layer, Source& source) {
  layer.config.gate = problem.gate;
  layer.config.training = problem.training ? 1 : 0;
  layer.config.seed = problem.seed;
  if (problem.gate == moecclGateSwitch) layer.config.jitter = 0.25;
  if (problem.gate == moecclGateNoisyTopK) {
    layer.config.importanceWeight = 0.5;
    layer.config.loadWeight = 2;
    layer.noise = source.uniform(problem.embedding * problem.experts);
  }
  if (problem.gate == moecclGateSigmoid) {
    layer.config.expertGroups = problem.experts % 3 == 0 ? 3 : 1;
    layer.config.topGroups =
        problem.experts % 3 == 0 && problem.choices * 3 <= problem.experts * 2 ? 2 : 0;
    layer.config.routingScale = 2.5;
    layer.config.sequenceTokens = 7;
    for (double bias : source.uniform(problem.experts)) layer.bias.push_back(bias / 8);
  }
}

Layer layerOf(const Problem& problem, Source& source) {
  Layer layer;
  layer.nMp = problem.grid.nMp;
  layer.config.tokens = problem.tokens;
  layer.config.embedding = problem.embedding;
  layer.config.hidden = problem.hidden;
  layer.config.experts = problem.experts;
  layer.config.topK = problem.choices;
  layer.config.capacityFactor = problem.dropless ? 0 : problem.capacityFactor;
  layer.config.capacityGroups = problem.dropless ? 0 : problem.capacityGroups;
  layer.config.dropless = problem.dropless ? 1 : 0;
  layer.config.residual = problem.residual;
  layer.config.chunks = problem.chunks;
  layer.config.activation = problem.activation;
  layer.config.datatype = problem.datatype;
  const std::int64_t gate = problem.embedding * problem.experts;
  layer.gate = problem.data == Tokens::tied ? source.whole(gate) : source.uniform(gate);
  for (std::int64_t m = 0; m < problem.embedding && problem.hotGate != 0; ++m)
    layer.gate[m * problem.experts + 1] += problem.hotGate;
  if (problem.datatype == moecclFloat32)
    for (double& number : layer.gate) number = static_cast<float>(number);
  setGate(problem, layer, source);
  const std::int64_t weights = problem.experts * problem.embedding * problem.hidden;
  if (problem.probe) {
    layer.w1.assign(weights, 0.0);
    layer.w2.assign(weights, 0.0);
    layer.b2.assign(problem.experts * problem.embedding, 0.0);
    for (std::int64_t e = 0; e < problem.experts; ++e) layer.b2[e * problem.embedding + e] = 1;
    return layer;
  }
  layer.w1 = source.uniform(weights);
  layer.w2 = source.uniform(weights);
  if (problem.biases) {
    layer.b1 = source.uniform(problem.experts * problem.hidden);
    layer.b2 = source.uniform(problem.experts * problem.embedding);
  }
  if (problem.residual == 0) return layer;
  layer.residualW1 = source.uniform(problem.embedding * problem.residual);
  layer.residualW2 = source.uniform(problem.residual * problem.embedding);
  if (problem.biases) {
    layer.residualB1 = source.uniform(problem.residual);
    layer.residualB2 = source.uniform(problem.embedding);
  }
  return layer;
}

// Which choices had a place, out of what the probe's experts left in the output.
void expectSamePlaces(const Problem& problem, const std::vector<double>& output,
                      const Result& expected) {
  for (std::int64_t token = 0; token < problem.tokens; ++token)
    for (std::int64_t expert = 0; expert < problem.experts; ++expert) {
      const std::int64_t at = token * problem.embedding + expert;
      ASSERT_EQ(output[at] > 0, expected.output[at] > 0)
          << "token " << token << ", expert " << expert;
    }
}

}  // namespace

void expectSolved(const Problem& problem, const Solved& solved, int rank, const Outcome& outcome) {
  const Result& expected = solved.expected[rank / problem.grid.nMp];
  ASSERT_EQ(outcome.output.size(), expected.output.size());
  EXPECT_LE(moe_reference::largestError(outcome.output, expected.output),
            toleranceOf(problem.datatype));
  EXPECT_EQ(outcome.assigned, expected.assigned);
  EXPECT_EQ(outcome.kept, expected.kept);
  EXPECT_EQ(outcome.droppedChoices, static_cast<std::int64_t>(expected.placeless.size()));
  EXPECT_NEAR(outcome.auxiliaryLoss, expected.auxiliaryLoss,
              1e-12 * std::max(1.0, expected.auxiliaryLoss));
  const double choices = std::reduce(expected.assigned.begin(), expected.assigned.end(), 0.0);
  const auto most = static_cast<double>(std::ranges::max(expected.assigned));
  EXPECT_DOUBLE_EQ(outcome.imbalance,
                   choices == 0 ? 0 : most / (choices / static_cast<double>(problem.experts)));
  if (problem.probe) expectSamePlaces(problem, outcome.output, expected);
}

std::string Problem::text() const {
  std::ostringstream out;
  out << name << ": nMp " << grid.nMp << ", nEp " << grid.nEp << ", nEsp " << grid.nEsp
      << (grid.order == moecclOrderEspEp ? ", ESP consecutive" : ", EP consecutive") << "; tokens "
      << tokens << ", embedding " << embedding << ", hidden " << hidden << ", experts " << experts
      << ", choices " << choices << ", capacity factor " << capacityFactor << ", groups "
      << capacityGroups << ", chunks " << chunks << ", gate " << gate
      << (dropless ? ", dropless" : "") << ", residual " << residual
      << (training ? ", training" : "") << (datatype == moecclFloat64 ? ", float64" : "")
      << ", seed " << seed;
  return out.str();
}

double toleranceOf(moecclDataType_t datatype) { return datatype == moecclFloat64 ? 1e-12 : 1e-5; }

moe_reference::Chance chanceOf(const Problem& problem, int batch) {
  moe_reference::Chance chance;
  if (!problem.training) return chance;
  const gates::Random random(
      {problem.seed, static_cast<std::uint64_t>(problem.step), static_cast<std::uint64_t>(batch)});
  if (problem.gate == moecclGateSwitch)
    chance.jitter = [=](std::int64_t token, std::int64_t m) {
      return random.fourUniform(token, m / 4)[m % 4];
    };
  if (problem.gate == moecclGateGShard)
    chance.second = [=](std::int64_t token) { return random.uniform(token, 0); };
  if (problem.gate == moecclGateNoisyTopK)
    chance.normal = [=](std::int64_t token, std::int64_t expert) {
      return random.normal(token, expert);
    };
  return chance;
}

Solved solve(const Problem& problem) {
  Source source(problem.seed, problem.datatype);
  Solved solved;
  solved.layer = layerOf(problem, source);
  for (int batch = 0; batch < problem.batches(); ++batch) {
    solved.inputs.push_back(tokensOf(problem, source));
    solved.expected.push_back(moe_reference::forward(solved.layer, solved.inputs.back().data(),
                                                     chanceOf(problem, batch)));
  }
  return solved;
}

Job jobOf(const Problem& problem) {
  Job job;
  job.ranks = problem.ranks();
  return job;
}

std::vector<Outcome> runLayer(const Problem& problem, const Solved& solved, const Run& run) {
  std::vector<Outcome> outcomes(problem.ranks());
  Job job = jobOf(problem);
  job.algorithms = run.algorithms;
  job.ucx = run.ucx;
  job.processes = run.processes;
  job.progressThread = run.progressThread;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = nullptr;
    check(moecclGridCreate(comm, problem.grid, &grid));
    moecclMoeConfig_t config = solved.layer.config;
    config.schedule = run.schedule;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    const int batch = rank / problem.grid.nMp;
    checkThat(shapes.capacity == solved.expected[batch].capacity,
              "capacity " + std::to_string(shapes.capacity));
    const moe_reference::Shard shard = moe_reference::shardOf(solved.layer, shapes);
    check(moecclMoeLayerSetWeights(layer, &shard.weights));

    moecclStream_t stream = nullptr;
    if (run.ownStream) check(moecclStreamCreate(comm, &stream));
    Outcome& outcome = outcomes[rank];
    const moe_reference::Elements input =
        moe_reference::encode(problem.datatype, solved.inputs[batch]);
    const moe_reference::Elements poison = moe_reference::encode(
        problem.datatype,
        std::vector<double>(solved.inputs[batch].size(), std::numeric_limits<double>::quiet_NaN()));
    moe_reference::Elements output;
    for (int i = 0; i < run.forwards; ++i) {
      if (problem.training) check(moecclMoeLayerSetStep(layer, problem.step));
      output = run.inPlace ? input : poison;
      check(moecclMoeForward(layer, run.inPlace ? output.data() : input.data(), output.data(),
                             stream));
    }
    outcome.output = moe_reference::decode(problem.datatype, output);
    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    check(moecclMoeGetStats(layer, &stats));
    outcome.auxiliaryLoss = stats.auxiliaryLoss;
    outcome.imbalance = stats.imbalance;
    outcome.droppedChoices = stats.droppedChoices;
    outcome.assigned.assign(stats.assigned, stats.assigned + problem.experts);
    outcome.kept.assign(stats.kept, stats.kept + problem.experts);
    {
      SCOPED_TRACE(problem.text() + ", " + nameOf(run.schedule) + ", rank " + std::to_string(rank));
      expectSolved(problem, solved, rank, outcome);
    }

    check(moecclStreamDestroy(stream));
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
  return outcomes;
}

const char* nameOf(moecclSchedule_t schedule) {
  constexpr const char* kNames[] = {"auto", "baseline", "S1", "S2", "PPMoE"};
  return kNames[schedule];
}

std::vector<moecclSchedule_t> schedulesOf(const Problem& problem) {
  std::vector<moecclSchedule_t> schedules{moecclScheduleBaseline};
  if (!problem.dropless) schedules.push_back(moecclScheduleS2);
  if (problem.dropless || problem.capacityGroups % problem.grid.nMp == 0)
    schedules.push_back(moecclScheduleS1);
  if (problem.grid.nMp == problem.ranks()) schedules.push_back(moecclSchedulePpMoe);
  return schedules;
}

void expectAllSchedules(const Problem& problem) {
  const Solved solved = solve(problem);
  std::vector<Outcome> first;
  for (moecclSchedule_t schedule : schedulesOf(problem)) {
    const auto outcomes = runLayer(problem, solved, {.schedule = schedule});
    if (first.empty()) first = outcomes;
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      SCOPED_TRACE(problem.text() + ", " + nameOf(schedule));
      EXPECT_EQ(outcomes[rank].auxiliaryLoss, first[rank].auxiliaryLoss);
      // What a probe's experts give back are the choices' weights.
      if (problem.probe) {
        EXPECT_EQ(outcomes[rank].output, first[rank].output);
      }
    }
  }
}

}  // namespace moeccl::test

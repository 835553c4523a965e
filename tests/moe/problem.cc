// Draws a problem by its seed, and checks what a layer has made of it.
#include "tests/moe/problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

#include "kernels/gates/random.h"
#include "src/base/text.h"

namespace moeccl::test {
namespace {

using moe_reference::Layer;
using moe_reference::Result;

// The same as the datatype has them.
std::vector<double> storable(moecclDataType_t datatype, const std::vector<double>& numbers) {
  return moe_reference::decode(datatype, moe_reference::encode(datatype, numbers));
}

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
    return storable(datatype_, values);
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
  if (problem.gate == moecclGateSwitch) layer.config.switchGate.jitter = 0.25;
  if (problem.gate == moecclGateNoisyTopK) {
    layer.config.noisyTopK.importanceWeight = 0.5;
    layer.config.noisyTopK.loadWeight = 2;
    layer.noise = source.uniform(problem.embedding * problem.experts);
  }
  if (problem.gate == moecclGateSigmoid) {
    layer.config.sigmoid.expertGroups = problem.experts % 3 == 0 ? 3 : 1;
    layer.config.sigmoid.topGroups =
        problem.experts % 3 == 0 && problem.choices * 3 <= problem.experts * 2 ? 2 : 0;
    layer.config.sigmoid.routingScale = 2.5;
    layer.config.sigmoid.sequenceTokens = 7;
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
  layer.config.renormalize = problem.renormalize ? 1 : 0;
  layer.config.minCapacity = problem.minCapacity;
  layer.config.tokenRouting = problem.tokenRouting;
  layer.config.chunks = problem.chunks;
  layer.config.activation = problem.activation;
  layer.config.datatype = problem.datatype;
  const std::int64_t gate = problem.embedding * problem.experts;
  layer.gate = problem.data == Tokens::tied ? source.whole(gate) : source.uniform(gate);
  for (std::int64_t m = 0; m < problem.embedding && problem.hotGate != 0; ++m)
    layer.gate[m * problem.experts + 1] += problem.hotGate;
  layer.gate = storable(problem.datatype, layer.gate);
  setGate(problem, layer, source);
  const std::int64_t inner = moe_reference::innerOf(layer.config, problem.hidden);
  const std::int64_t first = problem.experts * problem.embedding * inner,
                     second = problem.experts * problem.hidden * problem.embedding;
  if (problem.probe) {
    layer.w1.assign(first, 0.0);
    layer.w2.assign(second, 0.0);
    layer.b2.assign(problem.experts * problem.embedding, 0.0);
    for (std::int64_t e = 0; e < problem.experts; ++e) layer.b2[e * problem.embedding + e] = 1;
    return layer;
  }
  layer.w1 = source.uniform(first);
  layer.w2 = source.uniform(second);
  if (problem.biases) {
    layer.b1 = source.uniform(problem.experts * inner);
    layer.b2 = source.uniform(problem.experts * problem.embedding);
  }
  if (problem.residual == 0) return layer;
  const std::int64_t residualInner = moe_reference::innerOf(layer.config, problem.residual);
  layer.residualW1 = source.uniform(problem.embedding * residualInner);
  layer.residualW2 = source.uniform(problem.residual * problem.embedding);
  if (problem.biases) {
    layer.residualB1 = source.uniform(residualInner);
    layer.residualB2 = source.uniform(problem.embedding);
  }
  return layer;
}

// Which choices had a place, out of what the probe's experts left in the output.
std::string faultsOfPlaces(const Problem& problem, const std::vector<double>& output,
                           const Result& expected) {
  for (std::int64_t token = 0; token < problem.tokens; ++token)
    for (std::int64_t expert = 0; expert < problem.experts; ++expert) {
      const std::int64_t at = token * problem.embedding + expert;
      if ((output[at] > 0) != (expected.output[at] > 0))
        return "; the choice of expert " + std::to_string(expert) + " by token " +
               std::to_string(token);
    }
  return "";
}

}  // namespace

void checkSolved(const Problem& problem, const Solved& solved, int rank, const Outcome& outcome) {
  const Result& expected = solved.expected[rank / problem.grid.nMp];
  std::string faults;
  const auto require = [&](bool condition, const std::string& text) {
    if (!condition) faults += "; " + text;
  };
  require(outcome.output.size() == expected.output.size(), "another size of output");
  if (faults.empty()) {
    const double error = moe_reference::largestError(outcome.output, expected.output);
    require(error <= toleranceOf(problem.datatype), "output, off by " + numberText(error));
    if (problem.probe) faults += faultsOfPlaces(problem, outcome.output, expected);
  }
  require(outcome.assigned == expected.assigned, "assigned");
  require(outcome.kept == expected.kept, "kept");
  require(outcome.droppedChoices == static_cast<std::int64_t>(expected.placeless.size()),
          "dropped choices");
  require(std::abs(outcome.auxiliaryLoss - expected.auxiliaryLoss) <=
              1e-12 * std::max(1.0, expected.auxiliaryLoss),
          "auxiliary loss");
  const double choices = std::reduce(expected.assigned.begin(), expected.assigned.end(), 0.0);
  const auto most = static_cast<double>(std::ranges::max(expected.assigned));
  const double imbalance =
      choices == 0 ? 0 : most / (choices / static_cast<double>(problem.experts));
  require(std::abs(outcome.imbalance - imbalance) <= 1e-15 * imbalance, "imbalance");
  if (!faults.empty())
    throw std::runtime_error("not what the reference says" + faults + "; " + problem.text());
}

std::string Problem::text() const {
  std::ostringstream out;
  out << name << ": nMp " << grid.nMp << ", nEp " << grid.nEp << ", nEsp " << grid.nEsp
      << (grid.order == moecclOrderEspEp ? ", ESP consecutive" : ", EP consecutive") << "; tokens "
      << tokens << ", embedding " << embedding << ", hidden " << hidden << ", experts " << experts
      << ", choices " << choices << ", capacity factor " << capacityFactor << ", groups "
      << capacityGroups << ", chunks " << chunks << ", gate " << gate
      << (dropless ? ", dropless" : "") << (renormalize ? ", renormalized" : "")
      << (tokenRouting > 0 ? ", routed" : "") << ", nodes of";
  for (const int node : nodes) out << " " << node;
  out << ", residual " << residual
      << (data == Tokens::random     ? ", random tokens"
          : data == Tokens::repeated ? ", repeated tokens"
                                     : ", tied tokens")
      << (activation == moecclMoeGelu   ? ", gelu"
          : activation == moecclMoeRelu ? ", relu"
                                        : ", swiglu")
      << (biases ? "" : ", no biases") << (hotGate != 0 ? ", a hot expert" : "")
      << (training ? ", training" : "") << ", datatype " << datatype << ", seed " << seed;
  return out.str();
}

double toleranceOf(moecclDataType_t datatype) {
  switch (datatype) {
    case moecclFloat64:
      return 1e-12;
    case moecclFloat16:
      return 0x1p-8;
    case moecclBfloat16:
      return 0x1p-5;
    default:
      return 1e-5;
  }
}

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
  job.nodes = problem.nodes;
  return job;
}

const char* nameOf(moecclSchedule_t schedule) { return moecclScheduleName(schedule); }

std::vector<moecclSchedule_t> schedulesOf(const Problem& problem) {
  std::vector<moecclSchedule_t> schedules{moecclScheduleBaseline};
  if (!problem.dropless) schedules.push_back(moecclScheduleS2);
  if (problem.dropless || problem.capacityGroups % problem.grid.nMp == 0)
    schedules.push_back(moecclScheduleS1);
  if (problem.grid.nMp == problem.ranks() && problem.tokenRouting <= 0)
    schedules.push_back(moecclSchedulePpMoe);
  return schedules;
}

std::vector<moecclSchedule_t> chunkedSchedulesOf(const Problem& problem) {
  if (problem.dropless) return {moecclScheduleBaseline, moecclScheduleS1};
  return {moecclScheduleS1};
}

}  // namespace moeccl::test

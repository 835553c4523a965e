// Draws layers from Parm's table III, with every grid in turn, and estimates their memory.
#include "perf/perf/layer_space.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "perf/common/draws.h"

namespace moeccl::perf::layers {
namespace {

// Parm, table III. It leaves k and E open: GShard's k is 2, Switch's 1.
constexpr std::array<int, 3> kGroups = {1, 2, 4};  // N_MP and N_ESP
constexpr std::array<std::int64_t, 3> kSamples = {2, 4, 8};
constexpr std::array<std::int64_t, 3> kLengths = {512, 1024, 2048};
constexpr std::array<std::int64_t, 3> kSizes = {1024, 2048, 4096};  // M / N_ESP and H / N_ESP
constexpr std::array<double, 2> kFactors = {1.2, 2.4};
constexpr std::array<std::int64_t, 2> kTopK = {1, 2};
constexpr std::array<std::int64_t, 2> kExpertsPerRank = {1, 2};

constexpr double kFloat = sizeof(float);

bool isTraining(moecclPass_t pass) { return (pass & moecclPassBackward) != 0; }

std::vector<moecclGridShape_t> gridsOf(int ranks) {
  std::vector<moecclGridShape_t> grids;
  for (const int nMp : kGroups)
    for (const int nEsp : kGroups)
      if (ranks % nMp == 0 && ranks % nEsp == 0)
        grids.push_back({nMp, ranks / nEsp, nEsp, moecclOrderEspEp});
  return grids;
}

Layer drawLayer(const moecclGridShape_t& grid, std::int64_t topK, Draws& draws) {
  Layer layer{};
  layer.grid = grid;
  layer.samples = draws.oneOf(kSamples);
  layer.length = draws.oneOf(kLengths);
  layer.embedding = draws.oneOf(kSizes) * grid.nEsp;
  layer.hidden = draws.oneOf(kSizes) * grid.nEsp;
  layer.capacityFactor = draws.oneOf(kFactors);
  layer.experts = draws.oneOf(kExpertsPerRank) * grid.nEp;
  const std::int64_t drawnTopK = draws.oneOf(kTopK);
  layer.topK = std::min(topK > 0 ? topK : drawnTopK, layer.experts);
  return layer;
}

}  // namespace

std::int64_t Layer::capacity() const {
  const double exact = static_cast<double>(topK) * rowsPerChoice() * static_cast<double>(tokens()) /
                       static_cast<double>(experts);
  const auto up = [this](std::int64_t value) {
    return (value + grid.nMp - 1) / grid.nMp * grid.nMp;
  };
  return std::min(up(static_cast<std::int64_t>(std::ceil(exact * (1 - 1e-12)))), up(tokens()));
}

double Layer::work() const {
  return static_cast<double>(topK) * rowsPerChoice() * static_cast<double>(tokens()) *
         static_cast<double>(embedding) * static_cast<double>(hidden);
}

moecclMoeConfig_t Layer::config(moecclSchedule_t schedule, moecclPass_t pass) const {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = tokens();
  config.embedding = embedding;
  config.hidden = hidden;
  config.experts = experts;
  config.topK = topK;
  config.capacityFactor = capacityFactor;
  config.dropless = isDropless() ? 1 : 0;
  config.schedule = schedule;
  config.training = isTraining(pass);
  return config;
}

bool Layer::operator==(const Layer& other) const {
  return grid.nMp == other.grid.nMp && grid.nEp == other.grid.nEp && grid.nEsp == other.grid.nEsp &&
         grid.order == other.grid.order && samples == other.samples && length == other.length &&
         embedding == other.embedding && hidden == other.hidden && experts == other.experts &&
         topK == other.topK && capacityFactor == other.capacityFactor;
}

std::vector<Layer> drawLayers(int ranks, int count, std::uint64_t seed, std::int64_t topK) {
  Draws draws(seed);
  const std::vector<moecclGridShape_t> grids = gridsOf(ranks);
  std::vector<moecclGridShape_t> untaken;
  std::vector<Layer> layers;
  for (int i = 0; i < count; ++i) {
    if (untaken.empty()) {
      untaken = grids;
      draws.shuffle(untaken);
    }
    layers.push_back(drawLayer(untaken.back(), topK, draws));
    untaken.pop_back();
  }
  return layers;
}

Layer scaled(const Layer& layer, int scale) {
  Layer smaller = layer;
  smaller.length /= scale;
  smaller.embedding /= scale;
  smaller.hidden /= scale;
  return smaller;
}

double bytesOfSchedule(const Layer& layer, moecclSchedule_t schedule, moecclPass_t pass) {
  // The baseline computes all tokens of an MP group on each of its ranks, the others share them
  // out.
  const double share = schedule == moecclScheduleBaseline ? 1 : layer.grid.nMp;
  const double ranks = layer.grid.nEp * layer.grid.nEsp;
  const double places = ranks * static_cast<double>(layer.capacity()) / share;  // of one expert
  const double localExperts = static_cast<double>(layer.experts) / layer.grid.nEp;
  const double matrix = std::max(localExperts * places, static_cast<double>(layer.tokens())) *
                        static_cast<double>(layer.embedding);
  // Two matrices of the layer, and about as much on the way through collectives; for a backward
  // pass up to two more are kept, and hidden units have gradients.
  const double hidden = places * static_cast<double>(layer.hidden) / layer.grid.nEsp;
  return isTraining(pass) ? kFloat * (6 * matrix + 3 * hidden) : kFloat * (4 * matrix + hidden);
}

double bytesOfData(const Layer& layer, moecclPass_t pass) {
  const double embedding = static_cast<double>(layer.embedding);
  const double localExperts = static_cast<double>(layer.experts) / layer.grid.nEp;
  const double weights =
      2 * localExperts * embedding * static_cast<double>(layer.hidden) / layer.grid.nEsp;
  const double all = weights + embedding * static_cast<double>(layer.experts) +
                     3 * static_cast<double>(layer.tokens()) * embedding;
  // Gradients, and those of the first candidate, with which others' are compared.
  return kFloat * (isTraining(pass) ? 3 * all : all);
}

}  // namespace moeccl::perf::layers

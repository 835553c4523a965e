#include "perf/layers/contender.h"

#include <cmath>

#include "perf/layers/draws.h"

namespace moeccl::perf::layers {
namespace {

std::vector<float> randomFloats(std::int64_t count, double scale, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = draws.fraction() * static_cast<float>(scale);
  return values;
}

}  // namespace

const GridOfSetting& Grids::get(const moecclGridShape_t& shape, const std::string& algorithms) {
  const std::pair key(std::vector<int>{shape.nMp, shape.nEp, shape.nEsp, shape.order}, algorithms);
  if (const auto found = made_.find(key); found != made_.end()) return found->second;

  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  if (!algorithms.empty()) config.algorithms = algorithms.c_str();
  moecclComm_t comm = nullptr;
  require(moecclCommSplit(job_.comm(), 0, job_.rank(), &comm, &config), algorithms.c_str(),
          job_.comm());
  GridOfSetting& made = made_[key];
  made.comm.reset(comm);
  moecclGrid_t grid = nullptr;
  require(moecclGridCreate(comm, shape, &grid), "make the grid", comm);
  made.grid.reset(grid);
  return made;
}

// Sizes keep activations of order 1. Everyone's gate must be the same, the tokens those of the MP group, and
// b2 the same on the shards of an expert; which values the rest has is each rank's own business.
Data::Data(const Layer& layer, const moecclMoeShapes_t& shapes, int rank, std::uint64_t seed) {
  const std::int64_t embedding = layer.embedding, hidden = shapes.localHidden;
  const double perEmbedding = 1 / std::sqrt(static_cast<double>(embedding));
  const double perHidden = 1 / std::sqrt(static_cast<double>(layer.hidden));
  // Far from each other for different parts, and from those of another --seed.
  const auto seedOf = [seed](std::uint64_t part, std::int64_t which) {
    return (seed * 8 + part) * 1000003 + static_cast<std::uint64_t>(which);
  };
  gate_ = randomFloats(embedding * layer.experts, 4 * perEmbedding, seedOf(0, 0));
  w1_ = randomFloats(shapes.localExperts * embedding * hidden, perEmbedding, seedOf(1, rank));
  b1_ = randomFloats(shapes.localExperts * hidden, 0.5, seedOf(2, rank));
  w2_ = randomFloats(shapes.localExperts * hidden * embedding, perHidden, seedOf(3, rank));
  b2_ = randomFloats(shapes.localExperts * embedding, 0.5, seedOf(4, shapes.firstExpert));
  input_ = randomFloats(layer.tokens() * embedding, 1, seedOf(5, rank / layer.grid.nMp));
  weights_.gate = gate_.data();
  weights_.w1 = w1_.data();
  weights_.b1 = b1_.data();
  weights_.w2 = w2_.data();
  weights_.b2 = b2_.data();
}

Contender::Contender(const Layer& layer, const Setting& setting, Grids& grids) : setting_(setting) {
  const GridOfSetting& place = grids.get(layer.grid, setting.algorithms);
  comm_ = place.comm.get();
  const moecclMoeConfig_t config = layer.config(setting.schedule);
  moecclMoeLayer_t handle = nullptr;
  const moecclResult_t result = moecclMoeLayerCreate(place.grid.get(), &config, &handle);
  // What is wrong with the layer itself is wrong under the baseline too.
  if (result == moecclInvalidArgument && setting.schedule > moecclScheduleBaseline)
    reason_ = moecclGetLastError(nullptr);
  else
    require(result, "make the layer", nullptr);
  handle_.reset(handle);
}

moecclMoeShapes_t Contender::shapes() const {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(handle_.get(), &shapes), "ask for the shapes", nullptr);
  return shapes;
}

void Contender::setWeights(const moecclMoeWeights_t& weights) {
  require(moecclMoeLayerSetWeights(handle_.get(), &weights), "set the weights", nullptr);
}

void Contender::forward(const float* input, float* output, int count) {
  for (int i = 0; i < count; ++i)
    require(moecclMoeForward(handle_.get(), input, output, nullptr), setting_.name().c_str(),
            nullptr);
}

void Contender::barrier() {
  int ranks = 0;
  require(moecclCommCount(comm_, &ranks), "count the ranks", comm_);
  const signed char mine = 0;
  std::vector<signed char> all(static_cast<std::size_t>(ranks));
  require(moecclAllGather(&mine, all.data(), 1, moecclInt8, comm_, nullptr), "barrier", comm_);
}

}  // namespace moeccl::perf::layers

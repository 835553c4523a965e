#include "perf/fit/layers.h"

#include <moeccl/moe.h>

#include <array>
#include <random>

namespace moeccl::perf {
namespace {

constexpr std::array kKinds = {
    LayerKind{256, 512, 8, 2, 1},    //
    LayerKind{64, 128, 8, 1, 1},     // small: what a layer costs in any case
    LayerKind{1024, 1024, 4, 2, 1},  // the experts' products
    LayerKind{256, 2048, 8, 2, 1},   //
    LayerKind{512, 64, 64, 2, 1},    // the gate
    LayerKind{1024, 64, 8, 1, 1},    // what is moved
    LayerKind{256, 512, 8, 4, 1},    //
    LayerKind{256, 512, 8, 2, 2},    // empty places
};

constexpr std::int64_t kFewestTokens = 64, kMostTokens = 1 << 16, kStep = 2;
constexpr double kLongestPass = 0.1;

struct DestroyLayer {
  void operator()(moecclMoeLayer_t layer) const { moecclMoeLayerDestroy(layer); }
};

// A rank's own layer, with weights and tokens.
class LocalLayer {
 public:
  LocalLayer(moecclGrid_t grid, const LayerKind& kind, std::int64_t tokens) {
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = tokens;
    config.embedding = kind.embedding;
    config.hidden = kind.hidden;
    config.experts = kind.experts;
    config.topK = kind.topK;
    config.capacityFactor = kind.capacityFactor;
    config.training = 1;
    config.schedule = moecclScheduleS1;  // the only choice: there is nothing to exchange
    moecclMoeLayer_t layer = nullptr;
    require(moecclMoeLayerCreate(grid, &config, &layer), "make a layer", nullptr);
    layer_.reset(layer);

    const auto size = [](std::int64_t a, std::int64_t b, std::int64_t c) {
      return static_cast<std::size_t>(a * b * c);
    };
    gate_ = random(size(kind.embedding, kind.experts, 1));
    first_ = random(size(kind.experts, kind.embedding, kind.hidden));
    second_ = random(size(kind.experts, kind.hidden, kind.embedding));
    input_ = random(size(tokens, kind.embedding, 1));
    output_.resize(input_.size());
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = gate_.data();
    weights.w1 = first_.data();
    weights.w2 = second_.data();
    require(moecclMoeLayerSetWeights(layer, &weights), "set weights", nullptr);

    gateGradient_.resize(gate_.size());
    firstGradient_.resize(first_.size());
    secondGradient_.resize(second_.size());
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.gate = gateGradient_.data();
    gradients.w1 = firstGradient_.data();
    gradients.w2 = secondGradient_.data();
    require(moecclMoeLayerSetGradients(layer, &gradients), "set gradients", nullptr);
    forward();  // a backward pass takes one before it, whosever turn is first
  }

  void forward() {
    require(moecclMoeForward(layer_.get(), input_.data(), output_.data(), nullptr), "forward",
            nullptr);
  }
  // Of the last forward pass, as often as one likes.
  void backward() {
    require(moecclMoeBackward(layer_.get(), input_.data(), 1, output_.data(), nullptr), "backward",
            nullptr);
  }
  moecclMoeLayer_t get() const { return layer_.get(); }

 private:
  std::vector<float> random(std::size_t size) {
    std::uniform_real_distribution<float> values(-1, 1);
    std::vector<float> all(size);
    for (float& value : all) value = values(random_);
    return all;
  }

  std::minstd_rand random_;
  std::vector<float> gate_, first_, second_, input_, output_;
  std::vector<float> gateGradient_, firstGradient_, secondGradient_;
  std::unique_ptr<moecclMoeLayer, DestroyLayer> layer_;
};

// What is timed of a layer; samples of one pass are fitted by themselves.
struct TimedPass {
  moecclPass_t pass;
  void (LocalLayer::*run)();
};
constexpr std::array kPasses = {TimedPass{moecclPassForward, &LocalLayer::forward},
                                TimedPass{moecclPassBackward, &LocalLayer::backward}};

}  // namespace

std::span<const LayerKind> layerKinds() { return kKinds; }

std::string textOf(const LayerKind& kind) {
  std::string text = "layer of M " + std::to_string(kind.embedding) + ", H " +
                     std::to_string(kind.hidden) + ", E " + std::to_string(kind.experts) + ", k " +
                     std::to_string(kind.topK);
  return kind.capacityFactor == 1
             ? text
             : text + ", f " + std::to_string(static_cast<int>(kind.capacityFactor));
}

LayersMeasured measureLayers(Team& team, const FitOptions& options, const LayerKind& kind,
                             double until, const std::function<void(std::int64_t)>& showTokens,
                             Profile* profile) {
  const moecclComm_t world = team.job().comm();
  moecclComm_t comm = nullptr;
  require(moecclCommSplit(world, team.job().rank(), 0, &comm, nullptr), "split", world);
  const Comm alone(comm);
  moecclGrid_t grid = nullptr;
  require(moecclGridCreate(comm, {1, 1, 1, moecclOrderEspEp}, &grid), "make a grid", comm);
  const Grid ownGrid(grid);

  LayersMeasured measured;
  double last = 0;  // seconds of all passes
  for (std::int64_t tokens = kFewestTokens; tokens <= kMostTokens; tokens *= kStep) {
    if (last * kStep > kLongestPass) break;
    const double now = team.elapsed();
    if (now + last * kStep * kMinCalls >= until) {
      measured.cutAt = tokens;
      break;
    }
    showTokens(tokens);
    LocalLayer layer(grid, kind, tokens);
    std::vector<Turn> turns;
    for (const TimedPass& pass : kPasses)
      turns.push_back({[&layer, &pass] { (layer.*pass.run)(); }});
    takeTurns(team, turns, {options.steadyPercent, options.maxRepetitions, now + (until - now) / 2},
              true);
    last = 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const Median seconds = medianOf(turns[i].seconds);
      if (profile != nullptr) profile->add(layer.get(), kPasses[i].pass, seconds);
      measured.unsteady += !turns[i].steady;
      last += seconds.value;
    }
  }
  return measured;
}

}  // namespace moeccl::perf

// The blocks of a stage, one after the other, forward and backward.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace train {
namespace {

// Small, so that the first layer norm sees both, and the first steps change them.
constexpr double kEmbeddingDeviation = 0.1;

moecclMoeConfig_t layerOf(const ModelConfig& config, std::int64_t block,
                          moecclSchedule_t schedule) {
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  layer.tokens = config.tokens();
  layer.embedding = config.embedding;
  layer.hidden = config.hidden;
  layer.experts = config.expertsOf(block);
  layer.residual = config.residual;
  layer.topK = config.topK;
  layer.capacityFactor = config.capacityFactor;
  layer.capacityGroups = config.capacityGroups;
  layer.schedule = schedule;
  layer.training = 1;
  layer.datatype = kReal;
  layer.learn = config.learn ? 1 : 0;
  return layer;
}

// What moeccl does not check, or not on ranks of other stages. Places are T / g in each of g
// groups, and T is rounded up to a multiple of g and of N_MP: with N_MP a divisor of g they are the
// same on every grid, and with g a divisor of the tokens nothing is padded.
void requireFit(const Team& team, const ModelConfig& config) {
  const int nMp = team.shape().nMp;
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  if (config.embedding % config.heads != 0)
    throw std::invalid_argument("--embedding " + text(config.embedding) +
                                " must be a multiple of --heads " + text(config.heads));
  if (static_cast<std::int64_t>(config.experts.size()) > config.blocks)
    throw std::invalid_argument(
        "--experts has " + text(static_cast<std::int64_t>(config.experts.size())) +
        " numbers; it may have one for each of --blocks, " + text(config.blocks));
  if (config.blocks < team.stages())
    throw std::invalid_argument("--blocks " + text(config.blocks) +
                                " must be at least --pipeline " + text(team.stages()));
  if (config.heads % nMp != 0)
    throw std::invalid_argument("--heads " + text(config.heads) + " must be a multiple of --mp " +
                                text(nMp));
  if (config.capacityGroups % nMp != 0)
    throw std::invalid_argument("--capacity-groups " + text(config.capacityGroups) +
                                " must be a multiple of --mp " + text(nMp));
  for (std::int64_t block = 0; block < config.blocks; ++block) {
    const std::int64_t experts = config.expertsOf(block);
    if (experts % team.shape().nEp != 0)
      throw std::invalid_argument("--experts " + text(experts) + " must be a multiple of --ep " +
                                  text(team.shape().nEp));
    if (experts > std::numeric_limits<std::int32_t>::max())
      throw std::invalid_argument("--experts " + text(experts) + " must be at most 2147483647");
    if (experts < config.topK)
      throw std::invalid_argument("--experts " + text(experts) + " must be at least --top-k " +
                                  text(config.topK));
  }
  if (config.tokens() % config.capacityGroups != 0)
    throw std::invalid_argument("--capacity-groups " + text(config.capacityGroups) +
                                " must divide --samples times --context, " + text(config.tokens()));
}

std::string nameOf(std::int64_t block) { return "block" + std::to_string(block); }

// Of the blocks before that one, together.
std::int64_t expertsBefore(const ModelConfig& config, std::int64_t block) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < block; ++i) sum += config.expertsOf(i);
  return sum;
}

}  // namespace

Outcome& Outcome::operator+=(const Outcome& other) {
  crossEntropy += other.crossEntropy;
  divergence += other.divergence;
  auxiliaryLoss += other.auxiliaryLoss;
  dropped += other.dropped;
  assigned.resize(other.assigned.size());
  for (std::size_t i = 0; i < assigned.size(); ++i) assigned[i] += other.assigned[i];
  return *this;
}

Model::Block::Block(const Team& team, Parameters& parameters, const ModelConfig& config,
                    std::int64_t number, moecclSchedule_t schedule)
    : beforeAttention(parameters, nameOf(number) + ".norm1", config.tokens(), config.embedding),
      attention(team, parameters, nameOf(number) + ".attention", config.samples, config.context,
                config.embedding, config.heads),
      beforeExperts(parameters, nameOf(number) + ".norm2", config.tokens(), config.embedding),
      experts(team, parameters, nameOf(number) + ".experts", layerOf(config, number, schedule)) {}

Model::Model(const Team& team, Parameters& parameters, const ModelConfig& config,
             moecclSchedule_t schedule)
    : config_((requireFit(team, config), config)),
      firstBlock_(team.stage() * config.blocks / team.stages()) {
  // In the order in which a token meets them, so that stages one after the other have the tensors
  // of one stage alone, in its order.
  if (team.stage() == 0) {
    characters_ = &parameters.add("characters", Holders::kAll,
                                  wholeOf(1, config.characters, config.embedding));
    places_ =
        &parameters.add("places", Holders::kAll, wholeOf(1, config.context, config.embedding));
  }
  const std::int64_t end = (team.stage() + 1) * config.blocks / team.stages();
  for (std::int64_t i = firstBlock_; i < end; ++i)
    blocks_.push_back(std::make_unique<Block>(team, parameters, config, i, schedule));
  if (team.stage() == team.stages() - 1) {
    beforeOutput_ =
        std::make_unique<LayerNorm>(parameters, "norm", config.tokens(), config.embedding);
    output_ =
        &parameters.add("output", Holders::kAll, wholeOf(1, config.embedding, config.characters));
    logits_.resize(static_cast<std::size_t>(config.tokens() * config.characters));
  }
  const auto size = static_cast<std::size_t>(config.tokens() * config.embedding);
  for (std::vector<Real>* each : {&stream_, &in_, &out_}) each->resize(size);
}

std::vector<moecclSchedule_t> Model::schedules() const {
  std::vector<moecclSchedule_t> all;
  for (const auto& block : blocks_) all.push_back(block->experts.schedule());
  return all;
}

std::vector<Experts*> Model::layers() {
  std::vector<Experts*> all;
  for (const auto& block : blocks_) all.push_back(&block->experts);
  return all;
}

void Model::initialise(Parameters& parameters) const {
  const std::uint64_t seed = config_.seed;
  // Each block adds twice to the stream, whose size should not grow with their number.
  const double outputScale = 1 / std::sqrt(2.0 * static_cast<double>(config_.blocks));
  for (const Parameter* each : {characters_, places_})
    if (each != nullptr) parameters.fillNormal(*each, seed, kEmbeddingDeviation);
  for (const auto& block : blocks_) {
    block->beforeAttention.initialise(parameters);
    block->attention.initialise(parameters, seed, outputScale);
    block->beforeExperts.initialise(parameters);
    block->experts.initialise(parameters, seed, outputScale);
  }
  if (output_ == nullptr) return;
  beforeOutput_->initialise(parameters);
  // Small, so that at first all characters are about equally likely.
  parameters.fillNormal(*output_, seed, 0.1 / std::sqrt(static_cast<double>(config_.embedding)));
}

void Model::bind() const {
  for (const auto& block : blocks_) block->experts.bind();
}

Outcome Model::forward(const std::int32_t* inputs, const Lesson& lesson, double lossScale) {
  Outcome outcome;
  outcome.assigned.resize(static_cast<std::size_t>(expertsBefore(config_, config_.blocks)));
  auto assigned = outcome.assigned.begin() + expertsBefore(config_, firstBlock_);
  std::int64_t number = firstBlock_;
  if (characters_ != nullptr) embed(inputs);
  for (const auto& block : blocks_) {
    forward(*block);
    const moecclMoeStats_t stats = block->experts.stats();
    outcome.auxiliaryLoss += stats.auxiliaryLoss;
    outcome.dropped += static_cast<double>(stats.droppedChoices);
    assigned = std::copy_n(stats.assigned, config_.expertsOf(number++), assigned);
  }
  if (output_ == nullptr) return outcome;
  output();
  const Losses losses =
      learn(logits_.data(), lesson, config_.tokens(), config_.characters, lossScale);
  outcome.crossEntropy = losses.crossEntropy;
  outcome.divergence = losses.divergence;
  outputBackward();
  return outcome;
}

const Real* Model::probabilities(const std::int32_t* inputs) {
  embed(inputs);
  for (const auto& block : blocks_) forward(*block);
  output();
  softmax(logits_.data(), config_.tokens(), config_.characters);
  return logits_.data();
}

void Model::backward(const std::int32_t* inputs, double auxiliaryScale) {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
    backward(**block, auxiliaryScale);
  if (characters_ != nullptr) embedBackward(inputs);
}

void Model::embed(const std::int32_t* inputs) {
  const std::int64_t size = config_.embedding;
  for (std::int64_t token = 0; token < config_.tokens(); ++token) {
    const Real* const character = characters_->value + inputs[token] * size;
    const Real* const place = places_->value + token % config_.context * size;
    Real* const row = stream_.data() + token * size;
    for (std::int64_t i = 0; i < size; ++i) row[i] = character[i] + place[i];
  }
}

void Model::embedBackward(const std::int32_t* inputs) {
  const std::int64_t size = config_.embedding;
  for (std::int64_t token = 0; token < config_.tokens(); ++token) {
    const Real* const row = stream_.data() + token * size;
    add(characters_->gradient + inputs[token] * size, row, size);
    add(places_->gradient + token % config_.context * size, row, size);
  }
}

void Model::forward(Block& block) {
  const auto size = static_cast<std::int64_t>(stream_.size());
  block.beforeAttention.forward(stream_.data(), in_.data());
  block.attention.forward(in_.data(), out_.data());
  add(stream_.data(), out_.data(), size);
  block.beforeExperts.forward(stream_.data(), in_.data());
  block.experts.forward(in_.data(), out_.data());
  add(stream_.data(), out_.data(), size);
}

void Model::backward(Block& block, double auxiliaryScale) {
  block.experts.backward(stream_.data(), auxiliaryScale, in_.data());
  block.beforeExperts.backward(in_.data(), stream_.data());
  block.attention.backward(stream_.data(), in_.data());
  block.beforeAttention.backward(in_.data(), stream_.data());
}

// From the stream to the logits.
void Model::output() {
  const std::int64_t characters = config_.characters, size = config_.embedding;
  beforeOutput_->forward(stream_.data(), in_.data());
  multiply(logits_.data(), characters, {in_.data(), size}, {output_->value, characters},
           config_.tokens(), characters, size, Into::kSet);
}

// From the gradient of the logits to that of the stream, at once: nothing is kept of what output()
// read.
void Model::outputBackward() {
  const std::int64_t characters = config_.characters, size = config_.embedding;
  multiply(output_->gradient, characters, {in_.data(), size, true}, {logits_.data(), characters},
           size, characters, config_.tokens(), Into::kAdd);
  multiply(out_.data(), size, {logits_.data(), characters}, {output_->value, characters, true},
           config_.tokens(), size, characters, Into::kSet);
  std::fill(stream_.begin(), stream_.end(), Real{0});
  beforeOutput_->backward(out_.data(), stream_.data());
}

}  // namespace train

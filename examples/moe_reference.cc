// Loops over tokens, experts and elements: forward, and backward by the chain rule.
#include "examples/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <type_traits>
#include <utility>

namespace moe_reference {
namespace {

using Vector = std::vector<double>;

void add(Vector& sum, const Vector& summand) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += summand[i];
}

std::int64_t roundUp(std::int64_t value, std::int64_t multiple) {
  while (value % multiple != 0) ++value;
  return value;
}

double jitterOf(const Layer& layer, std::int64_t token, std::int64_t m, const Chance& chance) {
  if (!chance.jitter) return 1;
  return 1 + layer.config.switchGate.jitter * (2 * chance.jitter(token, m) - 1);
}

// As the layer stores numbers.
double rounded(const Layer& layer, double number) {
  return layer.config.datatype == moecclFloat64 ? number : static_cast<float>(number);
}

// What the gate sees of a token.
Vector seenBy(const Layer& layer, const double* input, std::int64_t token, const Chance& chance) {
  const std::int64_t embedding = layer.config.embedding;
  Vector seen(input + token * embedding, input + (token + 1) * embedding);
  for (std::int64_t m = 0; m < embedding && chance.jitter; ++m)
    seen[m] = rounded(layer, seen[m] * jitterOf(layer, token, m, chance));
  return seen;
}

// a b + c in the layer's type, rounded once.
double multiplyAdd(const Layer& layer, double a, double b, double c) {
  if (layer.config.datatype == moecclFloat64) return std::fma(a, b, c);
  return std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
}

// Sums of 32 products each are made in the layer's type, and added in double.
Vector product(const Layer& layer, const Vector& token, const Vector& matrix) {
  const std::int64_t experts = layer.config.experts;
  Vector result(matrix.empty() ? 0 : experts, 0.0);
  for (std::size_t expert = 0; expert < result.size(); ++expert) {
    double chain = 0;
    for (std::int64_t m = 0; m < layer.config.embedding; ++m) {
      chain = multiplyAdd(layer, token[m], matrix[m * experts + expert], chain);
      if (m % 32 == 31) result[expert] += std::exchange(chain, 0.0);
    }
    result[expert] += chain;
  }
  return result;
}

// Of the gate's half, with swiglu.
double activation(moecclMoeActivation_t which, double x) {
  if (which == moecclMoeRelu) return x > 0 ? x : 0;
  if (which == moecclMoeSwiglu) return x / (1 + std::exp(-x));
  return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
}

double slope(moecclMoeActivation_t which, double x) {
  if (which == moecclMoeRelu) return x > 0 ? 1 : 0;
  if (which == moecclMoeSwiglu) {
    const double share = 1 / (1 + std::exp(-x));
    return share * (1 + x * (1 - share));
  }
  const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  return (1 + std::erf(x / std::sqrt(2.0))) / 2 + x * density;
}

// Two matrices with an activation between: an expert, or the residual branch. Biases may be null.
// inner: columns of the first one.
template <typename Number>
struct Mlp {
  std::int64_t hidden, inner;
  Number *w1, *b1, *w2, *b2;
};

template <typename Number>
Number* at(std::vector<Number>& values, std::int64_t index) {
  return values.empty() ? nullptr : values.data() + index;
}
template <typename Number>
const Number* at(const std::vector<Number>& values, std::int64_t index) {
  return values.empty() ? nullptr : values.data() + index;
}

// `From`: a Layer, or Gradients of it.
template <typename From>
using MlpOf = Mlp<std::remove_pointer_t<decltype(at(std::declval<From&>().w1, 0))>>;

template <typename From>
MlpOf<From> expertOf(const moecclMoeConfig_t& config, From& from, std::int64_t expert) {
  const std::int64_t inner = innerOf(config, config.hidden);
  return {config.hidden,
          inner,
          at(from.w1, expert * config.embedding * inner),
          at(from.b1, expert * inner),
          at(from.w2, expert * config.embedding * config.hidden),
          at(from.b2, expert * config.embedding)};
}

template <typename From>
MlpOf<From> residualOf(const moecclMoeConfig_t& config, From& from) {
  return {config.residual,        innerOf(config, config.residual), at(from.residualW1, 0),
          at(from.residualB1, 0), at(from.residualW2, 0),           at(from.residualB2, 0)};
}

// What hidden units get, before the activation.
Vector hiddenInput(const Layer& layer, const Mlp<const double>& mlp, const double* token) {
  Vector inner(mlp.inner, 0.0);
  for (std::int64_t m = 0; m < layer.config.embedding; ++m)
    for (std::int64_t h = 0; h < mlp.inner; ++h) inner[h] += token[m] * mlp.w1[m * mlp.inner + h];
  for (std::int64_t h = 0; h < mlp.inner && mlp.b1 != nullptr; ++h) inner[h] += mlp.b1[h];
  return inner;
}

// What the activation is multiplied by.
double gated(const Mlp<const double>& mlp, const Vector& inner, std::int64_t h) {
  return mlp.inner == mlp.hidden ? 1 : inner[mlp.hidden + h];
}

Vector outputOf(const Layer& layer, const Mlp<const double>& mlp, const double* token) {
  const std::int64_t embedding = layer.config.embedding;
  const Vector inner = hiddenInput(layer, mlp, token);
  Vector result(embedding, 0.0);
  for (std::int64_t h = 0; h < mlp.hidden; ++h) {
    const double active = activation(layer.config.activation, inner[h]) * gated(mlp, inner, h);
    for (std::int64_t m = 0; m < embedding; ++m) result[m] += active * mlp.w2[h * embedding + m];
  }
  for (std::int64_t m = 0; m < embedding && mlp.b2 != nullptr; ++m) result[m] += mlp.b2[m];
  return result;
}

// What the gate and the capacity make of a batch.
struct Routing {
  std::vector<Vector> logits, noise;        // [tokens][E]
  std::vector<Decision<double>> decisions;  // [tokens]
  std::vector<Vector> first, second;        // [sections][E]
  std::vector<std::int64_t> placed;         // choices with a place: token * width + choice
  std::vector<std::vector<bool>> kept;      // [tokens][width]: with a place
  Result result;                            // all but the output
};

std::int64_t widthOf(const moecclMoeConfig_t& config) {
  return config.gate == moecclGateExpertChoice ? config.experts : config.topK;
}

// Tokens choose experts: all first choices have places before all second ones.
void placeInGroup(const Layer& layer, const std::vector<std::int64_t>& tokens, std::int64_t places,
                  Routing& routing) {
  const moecclMoeConfig_t& config = layer.config;
  Result& result = routing.result;
  std::vector<std::int64_t> taken(config.experts, 0);
  for (std::int64_t choice = 0; choice < config.topK; ++choice)
    for (std::int64_t token : tokens) {
      const std::int64_t expert = routing.decisions[token].experts[choice];
      if (expert < 0) continue;
      const bool full = taken[expert] == places;
      (full ? result.placeless : routing.placed).push_back(token * config.topK + choice);
      taken[expert] += full ? 0 : 1;
      result.assigned[expert] += 1;
      result.kept[expert] += full ? 0 : 1;
    }
}

// Experts choose tokens, by weights as they are handed out.
void chooseInGroup(const Layer& layer, const std::vector<std::int64_t>& tokens, std::int64_t places,
                   Routing& routing) {
  const moecclMoeConfig_t& config = layer.config;
  for (std::int64_t expert = 0; expert < config.experts; ++expert) {
    std::vector<std::int64_t> order = tokens;
    const auto weight = [&](std::int64_t token) {
      return rounded(layer, routing.decisions[token].weights[expert]);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return weight(a) > weight(b); });
    order.resize(std::min(order.size(), static_cast<std::size_t>(places)));
    for (std::int64_t token : order) routing.placed.push_back(token * config.experts + expert);
    routing.result.assigned[expert] += static_cast<std::int64_t>(order.size());
    routing.result.kept[expert] = routing.result.assigned[expert];
  }
}

Routing route(const Layer& layer, const double* input, const Chance& chance) {
  const moecclMoeConfig_t& config = layer.config;
  const std::int64_t tokens = config.tokens, experts = config.experts;
  const bool dropless = config.dropless != 0;
  const std::int64_t groups = dropless                     ? 1
                              : config.capacityGroups == 0 ? layer.nMp
                                                           : config.capacityGroups;
  const std::int64_t unit = std::lcm(groups, static_cast<std::int64_t>(layer.nMp));
  const std::int64_t padded = roundUp(tokens, unit);

  Routing routing;
  Result& result = routing.result;
  const double wanted = static_cast<double>(config.topK) * config.capacityFactor *
                        static_cast<double>(tokens) / static_cast<double>(experts);
  const double nearest = std::round(wanted);
  const double places = std::abs(wanted - nearest) <= 1e-12 * wanted ? nearest : std::ceil(wanted);
  if (!dropless)
    result.capacity = places >= static_cast<double>(padded)
                          ? padded
                          : roundUp(static_cast<std::int64_t>(places), unit);
  if (!dropless)
    result.capacity =
        std::min(padded, std::max(result.capacity, roundUp(groups * config.minCapacity, unit)));
  result.assigned.assign(experts, 0);
  result.kept.assign(experts, 0);

  routing.first.assign(sections(config), Vector(experts, 0.0));
  routing.second = routing.first;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const Vector seen = seenBy(layer, input, token, chance);
    routing.logits.push_back(product(layer, seen, layer.gate));
    routing.noise.push_back(product(layer, seen, layer.noise));
    routing.decisions.push_back(
        decide(config, token, routing.logits.back(), routing.noise.back(), layer.bias, chance));
    add(routing.first[sectionOf(config, token)], routing.decisions.back().first);
    add(routing.second[sectionOf(config, token)], routing.decisions.back().second);
  }
  for (std::int64_t section = 0; section < sections(config); ++section)
    result.auxiliaryLoss +=
        sectionLoss(config, section, routing.first[section], routing.second[section]);

  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> members;
    for (std::int64_t token = 0; token < tokens; ++token)
      if (token * groups / padded == group) members.push_back(token);
    const auto place = config.gate == moecclGateExpertChoice ? chooseInGroup : placeInGroup;
    place(layer, members, dropless ? tokens : result.capacity / groups, routing);
  }
  std::sort(result.placeless.begin(), result.placeless.end());
  const std::int64_t width = widthOf(config);
  routing.kept.assign(tokens, std::vector<bool>(width, false));
  for (std::int64_t at : routing.placed) routing.kept[at / width][at % width] = true;
  for (std::int64_t token = 0; token < tokens; ++token)
    renormalize(config, routing.kept[token], routing.decisions[token]);
  result.chosen.assign(tokens * width, -1);
  for (const auto* choices : {&routing.placed, &result.placeless})
    for (std::int64_t at : *choices)
      result.chosen[at] = routing.decisions[at / width].experts[at % width];
  return routing;
}

// Adds the gradients of weights, given those of their output for one token, and returns those of
// the token.
Vector mlpBackward(const Layer& layer, const Mlp<const double>& mlp, const double* token,
                   const Vector& outputGradient, const Mlp<double>& gradients) {
  const std::int64_t embedding = layer.config.embedding, hidden = mlp.hidden;
  const Vector inner = hiddenInput(layer, mlp, token);
  Vector tokenGradient(embedding, 0.0);
  for (std::int64_t m = 0; m < embedding; ++m) gradients.b2[m] += outputGradient[m];
  for (std::int64_t h = 0; h < hidden; ++h) {
    const double value = activation(layer.config.activation, inner[h]);
    const double active = value * gated(mlp, inner, h);
    double ofActive = 0;
    for (std::int64_t m = 0; m < embedding; ++m) {
      gradients.w2[h * embedding + m] += active * outputGradient[m];
      ofActive += mlp.w2[h * embedding + m] * outputGradient[m];
    }
    const auto through = [&](std::int64_t column, double gradient) {
      gradients.b1[column] += gradient;
      for (std::int64_t m = 0; m < embedding; ++m) {
        gradients.w1[m * mlp.inner + column] += token[m] * gradient;
        tokenGradient[m] += mlp.w1[m * mlp.inner + column] * gradient;
      }
    };
    through(h, ofActive * gated(mlp, inner, h) * slope(layer.config.activation, inner[h]));
    if (mlp.inner > hidden) through(hidden + h, ofActive * value);
  }
  return tokenGradient;
}

// The same but that all is positive, and no activation makes less of it: silu(x) is below x.
Layer withoutSigns(Layer layer) {
  if (layer.config.activation != moecclMoeSwiglu) layer.config.activation = moecclMoeRelu;
  for (Vector* weights : {&layer.w1, &layer.b1, &layer.w2, &layer.b2})
    for (double& each : *weights) each = std::abs(each);
  return layer;
}

// The slopes of (ofWeights times the token's weights) plus scale times the auxiliary loss, by the
// token's logits, and by those of its noise.
struct LogitSlopes {
  std::vector<Dual> logits, noise;  // [E]
};

LogitSlopes slopesOf(const Layer& layer, const Routing& routing, std::int64_t token,
                     const std::vector<Dual>& ofWeights, double scale, const Chance& chance) {
  const std::int64_t experts = layer.config.experts, section = sectionOf(layer.config, token);
  const auto tokens = static_cast<double>(layer.config.tokens);
  const auto slope = [&](const Vector& varied, std::int64_t expert) {
    const auto duals = [&](const Vector& values) {
      std::vector<Dual> result(values.begin(), values.end());
      if (&values == &varied) result[expert].slope = 1;
      return result;
    };
    Decision<Dual> it = decide(layer.config, token, duals(routing.logits[token]),
                               duals(routing.noise[token]), layer.bias, chance);
    renormalize(layer.config, routing.kept[token], it);
    Dual loss = 0;
    for (std::size_t c = 0; c < it.weights.size(); ++c) loss += ofWeights[c] * it.weights[c];
    std::vector<Dual> first, second;
    for (std::int64_t e = 0; e < experts; ++e) {
      const double sums[] = {routing.first[section][e], routing.second[section][e]};
      first.push_back({sums[0], it.first[e].slope, tokens * sums[0], it.first[e].slopeError});
      second.push_back({sums[1], it.second[e].slope, tokens * sums[1], it.second[e].slopeError});
    }
    loss += scale * sectionLoss(layer.config, section, first, second);
    return Dual(loss.slope, 0, loss.slopeError, 0);
  };
  LogitSlopes slopes;
  for (std::int64_t e = 0; e < experts; ++e)
    slopes.logits.push_back(slope(routing.logits[token], e));
  for (std::size_t e = 0; e < routing.noise[token].size(); ++e)
    slopes.noise.push_back(slope(routing.noise[token], static_cast<std::int64_t>(e)));
  return slopes;
}

// Adds the gradients of a matrix of the gate, and of the token by it, given those of their product.
void productBackward(const Layer& layer, const Vector& matrix, const Vector& seen,
                     const std::vector<Dual>& ofProduct, std::vector<Dual>& ofMatrix,
                     Vector& ofSeen) {
  const std::int64_t experts = layer.config.experts;
  for (std::size_t expert = 0; expert < ofProduct.size(); ++expert)
    for (std::int64_t m = 0; m < layer.config.embedding; ++m) {
      ofMatrix[m * experts + expert] += seen[m] * ofProduct[expert];
      ofSeen[m] += matrix[m * experts + expert] * ofProduct[expert].value;
    }
}

}  // namespace

std::int64_t innerOf(const moecclMoeConfig_t& config, std::int64_t hidden) {
  return config.activation == moecclMoeSwiglu ? 2 * hidden : hidden;
}

Result forward(const Layer& layer, const double* input, const Chance& chance) {
  const std::int64_t embedding = layer.config.embedding, width = widthOf(layer.config);
  Routing routing = route(layer, input, chance);
  routing.result.output.assign(layer.config.tokens * embedding, 0.0);
  for (std::int64_t at : routing.placed) {
    const std::int64_t token = at / width;
    const Decision<double>& decision = routing.decisions[token];
    const Vector output =
        outputOf(layer, expertOf(layer.config, layer, decision.experts[at % width]),
                 input + token * embedding);
    for (std::int64_t m = 0; m < embedding; ++m)
      routing.result.output[token * embedding + m] += decision.weights[at % width] * output[m];
  }
  for (std::int64_t token = 0; token < layer.config.tokens && layer.config.residual > 0; ++token) {
    const Vector output =
        outputOf(layer, residualOf(layer.config, layer), input + token * embedding);
    for (std::int64_t m = 0; m < embedding; ++m)
      routing.result.output[token * embedding + m] += output[m];
  }
  return routing.result;
}

Gradients backward(const Layer& layer, const double* input, const double* outputGradient,
                   double auxiliaryLossScale, const Chance& chance) {
  const moecclMoeConfig_t& config = layer.config;
  const std::int64_t embedding = config.embedding, width = widthOf(config);
  const Routing routing = route(layer, input, chance);
  Gradients gradients;
  gradients.input.assign(config.tokens * embedding, 0.0);
  gradients.w1.assign(layer.w1.size(), 0.0);
  gradients.b1.assign(config.experts * innerOf(config, config.hidden), 0.0);
  gradients.w2.assign(layer.w2.size(), 0.0);
  gradients.b2.assign(config.experts * embedding, 0.0);
  gradients.residualW1.assign(layer.residualW1.size(), 0.0);
  gradients.residualB1.assign(innerOf(config, config.residual), 0.0);
  gradients.residualW2.assign(layer.residualW2.size(), 0.0);
  gradients.residualB2.assign(config.residual > 0 ? embedding : 0, 0.0);

  // What an expert's output is without signs, times the length of its sums, bounds its rounding.
  const Layer positive = withoutSigns(layer);
  const auto steps = static_cast<double>(embedding + config.hidden);
  std::vector<std::vector<Dual>> ofWeights(config.tokens, std::vector<Dual>(width));
  for (std::int64_t at : routing.placed) {
    const std::int64_t token = at / width, choice = at % width;
    const std::int64_t expert = routing.decisions[token].experts[choice];
    const Mlp<const double> mlp = expertOf(config, layer, expert);
    const Vector output = outputOf(layer, mlp, input + token * embedding);
    Vector magnitudes(input + token * embedding, input + (token + 1) * embedding);
    for (double& each : magnitudes) each = std::abs(each);
    const Vector terms = outputOf(positive, expertOf(config, positive, expert), magnitudes.data());
    Vector weighted(embedding);
    for (std::int64_t m = 0; m < embedding; ++m) {
      ofWeights[token][choice] +=
          Dual(output[m], 0, terms[m] * steps, 0) * outputGradient[token * embedding + m];
      weighted[m] =
          routing.decisions[token].weights[choice] * outputGradient[token * embedding + m];
    }
    const Vector ofToken = mlpBackward(layer, mlp, input + token * embedding, weighted,
                                       expertOf(config, gradients, expert));
    for (std::int64_t m = 0; m < embedding; ++m)
      gradients.input[token * embedding + m] += ofToken[m];
  }
  for (std::int64_t token = 0; token < config.tokens && config.residual > 0; ++token) {
    const double* const ofOutput = outputGradient + token * embedding;
    const Vector ofToken =
        mlpBackward(layer, residualOf(config, layer), input + token * embedding,
                    Vector(ofOutput, ofOutput + embedding), residualOf(config, gradients));
    for (std::int64_t m = 0; m < embedding; ++m)
      gradients.input[token * embedding + m] += ofToken[m];
  }
  std::vector<Dual> ofGate(layer.gate.size()), ofNoise(layer.noise.size());
  for (std::int64_t token = 0; token < config.tokens; ++token) {
    const LogitSlopes slopes =
        slopesOf(layer, routing, token, ofWeights[token], auxiliaryLossScale, chance);
    const Vector seen = seenBy(layer, input, token, chance);
    Vector ofSeen(embedding, 0.0);
    productBackward(layer, layer.gate, seen, slopes.logits, ofGate, ofSeen);
    productBackward(layer, layer.noise, seen, slopes.noise, ofNoise, ofSeen);
    for (std::int64_t m = 0; m < embedding; ++m)
      gradients.input[token * embedding + m] += ofSeen[m] * jitterOf(layer, token, m, chance);
  }
  for (const Dual& each : ofGate) {
    gradients.gate.push_back(each.value);
    gradients.gateError.push_back(each.valueError);
  }
  for (const Dual& each : ofNoise) {
    gradients.noise.push_back(each.value);
    gradients.noiseError.push_back(each.valueError);
  }
  return gradients;
}

namespace {

// The part of [E][...] matrices that belongs to `shapes`.
template <typename Whole>
Gradients cutShard(const Layer& layer, const moecclMoeShapes_t& shapes, const Whole& whole) {
  Gradients part;
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const std::int64_t inner = innerOf(layer.config, hidden);
  const auto append = [](auto& to, const auto& from, std::int64_t first, std::int64_t count) {
    if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + count);
  };
  for (std::int64_t e = shapes.firstExpert; e < shapes.firstExpert + shapes.localExperts; ++e) {
    for (std::int64_t m = 0; m < embedding; ++m)
      for (std::int64_t half = 0; half < inner; half += hidden)
        append(part.w1, whole.w1, (e * embedding + m) * inner + half + shapes.firstHidden,
               shapes.localHidden);
    for (std::int64_t half = 0; half < inner; half += hidden)
      append(part.b1, whole.b1, e * inner + half + shapes.firstHidden, shapes.localHidden);
    append(part.w2, whole.w2, (e * hidden + shapes.firstHidden) * embedding,
           shapes.localHidden * embedding);
    append(part.b2, whole.b2, e * embedding, embedding);
  }
  part.gate = whole.gate;
  part.noise = whole.noise;
  part.residualW1 = whole.residualW1;
  part.residualB1 = whole.residualB1;
  part.residualW2 = whole.residualW2;
  part.residualB2 = whole.residualB2;
  return part;
}

// A float of 16 bits: so many bits of mantissa, and the least exponent of a normal number.
template <int kMantissa, int kLeast>
class Short {
 public:
  explicit Short(double number) {
    constexpr int kInfinity = (1 << 15) - (1 << kMantissa);
    int magnitude = kInfinity + 1;  // NaN
    if (!std::isnan(number)) {
      const int exponent = std::max(number == 0 ? kLeast : std::ilogb(number), kLeast);
      const double places = std::nearbyint(std::ldexp(std::abs(number), kMantissa - exponent));
      magnitude =
          std::min(static_cast<int>(places) + ((exponent - kLeast) << kMantissa), kInfinity);
    }
    bits_ = static_cast<std::uint16_t>(magnitude | (std::signbit(number) ? 1 << 15 : 0));
  }
  operator double() const {
    const int magnitude = bits_ & 0x7fff, field = magnitude >> kMantissa;
    const int places = magnitude - (std::max(field, 1) - 1) * (1 << kMantissa);
    if (field == (1 << (15 - kMantissa)) - 1)
      return magnitude & ((1 << kMantissa) - 1) ? NAN : INFINITY;
    const double size = std::ldexp(places, kLeast - kMantissa + std::max(field, 1) - 1);
    return bits_ >> 15 ? -size : size;
  }

 private:
  std::uint16_t bits_;
};

template <typename Real>
Elements encodeAs(const std::vector<double>& numbers) {
  const std::vector<Real> values(numbers.begin(), numbers.end());
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  return {bytes, bytes + values.size() * sizeof(Real)};
}

template <typename Real>
std::vector<double> decodeFrom(const Elements& elements) {
  const auto* const values = reinterpret_cast<const Real*>(elements.data());
  return {values, values + elements.size() / sizeof(Real)};
}

}  // namespace

Elements encode(moecclDataType_t datatype, const std::vector<double>& numbers) {
  if (datatype == moecclFloat16) return encodeAs<Short<10, -14>>(numbers);
  if (datatype == moecclBfloat16) return encodeAs<Short<7, -126>>(numbers);
  return datatype == moecclFloat64 ? encodeAs<double>(numbers) : encodeAs<float>(numbers);
}

std::vector<double> decode(moecclDataType_t datatype, const Elements& elements) {
  if (datatype == moecclFloat16) return decodeFrom<Short<10, -14>>(elements);
  if (datatype == moecclBfloat16) return decodeFrom<Short<7, -126>>(elements);
  return datatype == moecclFloat64 ? decodeFrom<double>(elements) : decodeFrom<float>(elements);
}

Shard shardOf(const Layer& layer, const moecclMoeShapes_t& shapes) {
  const Gradients part = cutShard(layer, shapes, layer);
  Shard shard;
  const auto encoded = [&](const Vector& numbers, Elements& elements) -> const void* {
    elements = encode(layer.config.datatype, numbers);
    return elements.empty() ? nullptr : elements.data();
  };
  shard.weights.gate = encoded(part.gate, shard.gate);
  shard.weights.noise = encoded(part.noise, shard.noise);
  shard.weights.bias = layer.bias.empty() ? nullptr : layer.bias.data();
  shard.weights.w1 = encoded(part.w1, shard.w1);
  shard.weights.b1 = encoded(part.b1, shard.b1);
  shard.weights.w2 = encoded(part.w2, shard.w2);
  shard.weights.b2 = encoded(part.b2, shard.b2);
  shard.weights.residualW1 = encoded(part.residualW1, shard.residualW1);
  shard.weights.residualB1 = encoded(part.residualB1, shard.residualB1);
  shard.weights.residualW2 = encoded(part.residualW2, shard.residualW2);
  shard.weights.residualB2 = encoded(part.residualB2, shard.residualB2);
  return shard;
}

Gradients shardOf(const Layer& layer, const moecclMoeShapes_t& shapes, const Gradients& whole) {
  Gradients shard = cutShard(layer, shapes, whole);
  shard.input = whole.input;
  shard.gateError = whole.gateError;
  shard.noiseError = whole.noiseError;
  return shard;
}

double largestError(const Vector& actual, const Vector& expected) {
  double largest = 0, scale = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
    scale = std::max(scale, std::abs(expected[i]));
  }
  return scale == 0 ? largest : largest / scale;
}

}  // namespace moe_reference

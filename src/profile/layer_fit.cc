#include "src/profile/layer_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/cost/least_squares.h"
#include "src/profile/profile.h"

namespace moeccl {
namespace {

// That a factor is 1: as samples that say so. What local work and latencies take may be hidden
// behind what the wire still carries; bytes must cross it.
constexpr std::array kPriors{0.01, 0.01, 0.1};  // local, latency, bytes

struct Times {
  double seconds, latency;
};

// What the profile predicts of a sample's parts, over what the sample took.
struct Shares {
  double local;
  std::vector<Times> exchanges;

  double latency() const {
    double sum = 0;
    for (const Times& exchange : exchanges) sum += exchange.latency;
    return sum;
  }
  double bytes() const {
    double sum = 0;
    for (const Times& exchange : exchanges) sum += exchange.seconds - exchange.latency;
    return sum;
  }
  double by(const LayerFactors& factors) const {
    return factors.local * local + factors.latency * latency() + factors.bytes * bytes();
  }
};

// By the fastest algorithm; of groups that differ the slowest. Nothing where one was not measured.
std::optional<Times> timesOf(const Profile& profile, const LayerExchange& exchange) {
  Times slowest{};
  for (const std::string& where : exchange.where) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double seconds = kNone;
    for (const Curve& curve : profile.curves(exchange.collective, where))
      seconds = std::min(seconds, curve.seconds(exchange.bytes));
    if (seconds == kNone) return std::nullopt;
    if (seconds > slowest.seconds)
      slowest = {seconds, std::min(seconds, profile.latency(exchange.collective, where))};
  }
  return slowest;
}

std::optional<Shares> sharesOf(const Profile& profile, const Local& local,
                               const LayerSample& sample) {
  Shares shares{local.fit.at(sample.local) / sample.seconds, {}};
  for (const LayerExchange& exchange : sample.exchanges) {
    const auto times = timesOf(profile, exchange);
    if (!times) return std::nullopt;
    shares.exchanges.push_back({times->seconds / sample.seconds, times->latency / sample.seconds});
  }
  return shares;
}

}  // namespace

LayerFactors fitFactors(const Profile& profile, const LayerKey& key,
                        std::span<const LayerSample> samples) {
  const Local* const local = profile.local(key.pass == "backward" ? Pass::backward : Pass::forward);
  std::vector<Shares> known;
  for (const LayerSample& sample : samples)
    if (const auto shares = local ? sharesOf(profile, *local, sample) : std::nullopt)
      known.push_back(*shares);
  if (known.empty()) return {};

  std::vector<std::vector<double>> columns(kPriors.size());
  std::vector<double> target;
  for (std::size_t i = 0; i < kPriors.size(); ++i) {
    target.push_back(std::sqrt(kPriors[i]));
    for (std::size_t j = 0; j < kPriors.size(); ++j) columns[i].push_back(i == j ? target[i] : 0);
  }
  for (const Shares& shares : known) {
    columns[0].push_back(shares.local);
    columns[1].push_back(shares.latency());
    columns[2].push_back(shares.bytes());
    target.push_back(1);
  }
  const std::vector<double> factors = nonNegativeLeastSquares(columns, target);
  LayerFactors fit;
  fit.local = std::clamp(factors[0], kLeastFactor, kMostFactor);
  fit.latency = std::clamp(factors[1], kLeastFactor, kMostFactor);
  fit.bytes = std::clamp(factors[2], kLeastFactor, kMostFactor);
  std::vector<double> errors;
  for (const Shares& shares : known)
    errors.push_back(std::min(std::abs(shares.by(fit) - 1), kMostError));
  std::ranges::sort(errors);
  fit.medianError = (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
  fit.worstError = errors.back();
  return fit;
}

}  // namespace moeccl

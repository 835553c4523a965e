// Lays parts out, sums gradients over ranks that hold the same part, and takes Adam's steps.
#include "parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "random.h"

namespace train {
namespace {

std::size_t indexOf(Holders holders) { return static_cast<std::size_t>(holders); }

// Where the caller's part of one state is, in stores that are constant or not.
template <typename Stores>
auto stateOf(Stores& stores, const Parameter& parameter, int state) {
  auto& store = stores[indexOf(parameter.holders)];
  auto& values = state == 0 ? store.values : state == 1 ? store.moments1 : store.moments2;
  return values.data() + parameter.offset;
}

}  // namespace

Part wholeOf(std::int64_t a, std::int64_t b, std::int64_t c) {
  return {{a, b, c}, {0, 0, 0}, {a, b, c}};
}

Part cut(Part part, int dimension, std::int64_t place, std::int64_t places) {
  const auto d = static_cast<std::size_t>(dimension);
  part.count[d] = part.whole[d] / places;
  part.first[d] = place * part.count[d];
  return part;
}

const Parameter& Parameters::add(const std::string& name, Holders holders, const Part& part) {
  for (const Parameter& each : tensors_)
    if (each.name == name) return each;
  const bool speaks = holders == Holders::kAll       ? team_.stageRank() == 0
                      : holders == Holders::kMpGroup ? team_.mpGroup() == 0
                      : holders == Holders::kShard   ? true
                                                     : team_.espRank() == 0;
  std::int64_t& size = sizes_[indexOf(holders)];
  tensors_.push_back({name, holders, part, speaks, size});
  size += part.size();
  return tensors_.back();
}

void Parameters::allocate() {
  for (std::size_t i = 0; i < kHolders; ++i) {
    Store& store = stores_[i];
    for (std::vector<Real>* each :
         {&store.values, &store.gradients, &store.moments1, &store.moments2})
      each->assign(static_cast<std::size_t>(sizes_[i]), Real{0});
  }
  for (Parameter& each : tensors_) {
    Store& store = stores_[indexOf(each.holders)];
    each.value = store.values.data() + each.offset;
    each.gradient = store.gradients.data() + each.offset;
  }
}

void Parameters::fillNormal(const Parameter& parameter, std::uint64_t seed, double deviation) {
  const Random random(seed, parameter.name);
  parameter.part.forEach([&](std::int64_t here, std::int64_t index) {
    parameter.value[here] =
        static_cast<Real>(deviation) * random.normal(static_cast<std::uint64_t>(index));
  });
}

void Parameters::fill(const Parameter& parameter, Real value) {
  std::fill_n(parameter.value, parameter.part.size(), value);
}

void Parameters::zeroGradients() {
  for (Store& store : stores_) std::fill(store.gradients.begin(), store.gradients.end(), Real{0});
}

void Parameters::reduceGradients() {
  // Each rank of an MP group has computed the same gradients of what all ranks hold. The mean of
  // them is summed, not one: so not even rounding can drive replicas apart.
  std::vector<Real>& common = stores_[indexOf(Holders::kAll)].gradients;
  team_.sumOverStage(common.data(), common.size());
  const Real share = Real{1} / static_cast<Real>(team_.shape().nMp);
  for (Real& gradient : common) gradient *= share;

  std::vector<Real>& parts = stores_[indexOf(Holders::kMpGroup)].gradients;
  team_.sumOverMpGroups(parts.data(), parts.size());
}

void Parameters::update(const Adam& adam, double learningRate, std::int64_t step) {
  const auto beta1 = static_cast<Real>(adam.beta1), beta2 = static_cast<Real>(adam.beta2);
  const auto correction1 =
      static_cast<Real>(learningRate / (1 - std::pow(adam.beta1, static_cast<double>(step))));
  const auto correction2 =
      static_cast<Real>(1 / (1 - std::pow(adam.beta2, static_cast<double>(step))));
  const auto epsilon = static_cast<Real>(adam.epsilon);
  for (Store& store : stores_)
    for (std::size_t i = 0; i < store.values.size(); ++i) {
      const Real gradient = store.gradients[i];
      Real& moment1 = store.moments1[i];
      Real& moment2 = store.moments2[i];
      moment1 += (1 - beta1) * (gradient - moment1);
      moment2 += (1 - beta2) * (gradient * gradient - moment2);
      store.values[i] -= correction1 * moment1 / (std::sqrt(correction2 * moment2) + epsilon);
    }
}

void Parameters::tell(const Parameter& parameter, int state, std::vector<Real>& whole) const {
  if (!parameter.speaks) return;
  const Real* const mine = stateOf(stores_, parameter, state);
  parameter.part.forEach([&](std::int64_t here, std::int64_t index) {
    whole[static_cast<std::size_t>(index)] = mine[here];
  });
}

bool Parameters::holds(const Parameter& parameter, int state,
                       const std::vector<Real>& whole) const {
  const Real* const mine = stateOf(stores_, parameter, state);
  bool same = true;
  parameter.part.forEach([&](std::int64_t here, std::int64_t index) {
    same = same &&
           std::memcmp(mine + here, &whole[static_cast<std::size_t>(index)], sizeof(Real)) == 0;
  });
  return same;
}

void Parameters::scatter(const Parameter& parameter, int state, const std::vector<Real>& whole) {
  Real* const mine = stateOf(stores_, parameter, state);
  parameter.part.forEach([&](std::int64_t here, std::int64_t index) {
    mine[here] = whole[static_cast<std::size_t>(index)];
  });
}

}  // namespace train

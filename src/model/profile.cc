// Keeps the curves of a profile sorted, fits them, and predicts times between samples and beyond
// the largest one. Two fingerprints are compared here.
#include "src/model/profile.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// A line has no slope to speak of where bytes take less than this share of the largest sample's
// time.
constexpr double kNoSlope = 0.05;

// "2 nodes of 4 ranks", "3 nodes of 3, 1, 2 ranks".
std::string describe(const std::vector<int>& ranksPerNode) {
  constexpr std::size_t kMost = 16;
  const std::size_t nodes = ranksPerNode.size();
  std::string text = stringf("%zu %s of ", nodes, nodes == 1 ? "node" : "nodes");
  const bool even =
      std::ranges::adjacent_find(ranksPerNode, std::not_equal_to()) == ranksPerNode.end();
  const std::size_t shown = even ? std::min<std::size_t>(nodes, 1) : std::min(nodes, kMost);
  for (std::size_t node = 0; node < shown; ++node)
    text += (node ? ", " : "") + std::to_string(ranksPerNode[node]);
  if (!even && shown < nodes) text += ", ...";
  return text + (shown == 1 && ranksPerNode[0] == 1 ? " rank" : " ranks");
}

// "0.1" of "0.1.3", "ucx 1.13" of "ucx 1.13.1".
std::string_view release(std::string_view version) {
  const std::size_t minor = version.find('.');
  if (minor == version.npos) return version;
  return version.substr(0, std::min(version.find('.', minor + 1), version.size()));
}

using Order = std::tuple<std::string_view, std::string_view, std::string_view>;

Order orderOf(const Curve& curve) {
  return {curve.key.collective, curve.key.where, curve.key.algorithm};
}

std::vector<FeaturePoint> featurePoints(const std::vector<LocalSample>& samples) {
  std::vector<FeaturePoint> points;
  for (const LocalSample& sample : samples) {
    const auto features = featuresOf(sample.work);
    points.push_back({{features.begin(), features.end()}, sample.seconds, sample.spread});
  }
  return points;
}

[[noreturn]] void twice(const CurveKey& key) {
  throw Error(moecclInvalidArgument,
              stringf("the profile has two curves of %s, algorithm %s, group %s",
                      key.collective.c_str(), key.algorithm.c_str(), key.where.c_str()));
}

void fitCurve(Curve& curve) {
  std::ranges::stable_sort(curve.samples, {}, &Point::x);
  curve.fit = fitLine(curve.samples);
  curve.corrections = correctionsOf(curve.fit, curve.samples);
  curve.beyond = 0;
}

}  // namespace

const char* nameOf(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

namespace {

// The parts of what describeNetwork() says (src/bootstrap/network.h): "1000 Mb/s MTU 1500, mlx5_0
// 100 Gb/sec". Each is "" where it is not known.
struct Network {
  std::string_view speed, mtu, devices;
};

Network networkOf(std::string_view text) {
  constexpr std::string_view kSpeed = " Mb/s", kMtu = "MTU ", kNext = ", ";
  Network network;
  std::string_view interface = text.substr(0, text.find(kNext));
  if (const std::size_t end = interface.find(kSpeed); end != interface.npos)
    network.speed = interface.substr(0, end);
  if (const std::size_t at = interface.find(kMtu); at != interface.npos)
    network.mtu = interface.substr(at + kMtu.size());
  const bool none = network.speed.empty() && network.mtu.empty();
  if (none) interface = {};
  text.remove_prefix(interface.size());
  if (text.starts_with(kNext)) text.remove_prefix(kNext.size());
  network.devices = text;
  return network;
}

// A part that one of them does not know is no difference.
bool maySame(const Network& one, const Network& other) {
  const auto may = [](std::string_view a, std::string_view b) {
    return a.empty() || b.empty() || a == b;
  };
  return may(one.speed, other.speed) && may(one.mtu, other.mtu) && may(one.devices, other.devices);
}

}  // namespace

std::string differences(const Fingerprint& mine, const Fingerprint& theirs) {
  std::string text;
  const auto differ = [&](const std::string& there, const char* is, const std::string& here) {
    text += (text.empty() ? "it was made for " : "; for ") + there + ", here " + is + " " + here;
  };
  if (mine.ranksPerNode != theirs.ranksPerNode)
    differ(describe(theirs.ranksPerNode), mine.ranksPerNode.size() == 1 ? "is" : "are",
           describe(mine.ranksPerNode));
  if (mine.processor != theirs.processor)
    differ("processors \"" + theirs.processor + '"', "are", '"' + mine.processor + '"');
  if (mine.processorsPerNode != theirs.processorsPerNode)
    differ(stringf("%d processors per node", theirs.processorsPerNode), "are",
           std::to_string(mine.processorsPerNode));
  if (release(mine.transport) != release(theirs.transport))
    differ("transport \"" + theirs.transport + '"', "is", '"' + mine.transport + '"');
  if (release(mine.library) != release(theirs.library))
    differ("moeccl " + theirs.library, "is", mine.library);
  if (!maySame(networkOf(mine.network), networkOf(theirs.network)))
    differ("network \"" + theirs.network + '"', "is", '"' + mine.network + '"');
  return text;
}

std::array<double, kLocalFeatures> featuresOf(const LocalWork& work) {
  return {1,
          work.tokens * work.embedding * work.experts,
          work.rows * work.embedding * work.hidden,
          work.ownExperts * work.embedding * work.hidden,
          work.rows * work.hidden,
          work.rows * work.embedding + work.tokens * work.embedding * work.choices};
}

std::span<const Curve> Profile::curves(std::string_view collective, std::string_view where) const {
  using Group = std::pair<std::string_view, std::string_view>;
  const auto groupOf = [](const Curve& curve) {
    return Group(curve.key.collective, curve.key.where);
  };
  const Group wanted(collective, where);
  return {std::ranges::lower_bound(curves_, wanted, {}, groupOf),
          std::ranges::upper_bound(curves_, wanted, {}, groupOf)};
}

double Profile::latency(std::string_view collective, std::string_view where) const {
  double least = std::numeric_limits<double>::infinity();
  for (const Curve& curve : curves(collective, where)) least = std::min(least, curve.seconds(0));
  return least;
}

const Curve* Profile::find(std::string_view collective, std::string_view algorithm,
                           std::string_view where) const {
  const Order wanted{collective, where, algorithm};
  const auto found = std::ranges::lower_bound(curves_, wanted, {}, orderOf);
  return found != curves_.end() && orderOf(*found) == wanted ? &*found : nullptr;
}

double Curve::seconds(double bytes) const {
  const auto corrected = [&](double x) { return fit.at(x) * factorAt(corrections, x); };
  const auto after = std::ranges::upper_bound(samples, bytes, {}, &Point::x);
  if (after == samples.begin()) return corrected(bytes);
  if (after != samples.end()) {
    const double low = after[-1].x, high = after->x;
    const double from = corrected(low), to = corrected(high);
    return from + (to - from) * ((bytes - low) / (high - low));
  }
  const double largest = samples.back().x, last = corrected(largest);
  if (beyond > 0) return last + beyond * (bytes - largest);
  if (largest < 1) return corrected(bytes);
  const auto before = std::ranges::lower_bound(samples, largest, {}, &Point::x);
  const double slope = before == samples.begin()
                           ? fit.line.beta
                           : (last - corrected(before[-1].x)) / (largest - before[-1].x);
  return slope * largest < kNoSlope * last ? last * (bytes / largest)
                                           : last + slope * (bytes - largest);
}

const Local* Profile::local(Pass pass) const {
  const auto& local = local_[static_cast<std::size_t>(pass)];
  return local ? &*local : nullptr;
}

void Profile::add(CurveKey key, std::vector<Point> samples) {
  if (find(key.collective, key.algorithm, key.where)) twice(key);
  Curve curve{std::move(key), std::move(samples), {}};
  fitCurve(curve);
  curves_.insert(std::ranges::lower_bound(curves_, orderOf(curve), {}, orderOf), std::move(curve));
}

void Profile::setCurves(std::vector<Curve> curves) {
  std::ranges::sort(curves, {}, orderOf);
  const auto same = std::ranges::adjacent_find(curves, {}, orderOf);
  if (same != curves.end()) twice(same->key);
  for (Curve& curve : curves) {
    std::ranges::stable_sort(curve.samples, {}, &Point::x);
    curve.corrections = correctionsOf(curve.fit, curve.samples);
  }
  curves_ = std::move(curves);
}

void Profile::setBeyond(const CurveKey& key, double secondsPerByte) {
  const Order wanted{key.collective, key.where, key.algorithm};
  const auto found = std::ranges::lower_bound(curves_, wanted, {}, orderOf);
  if (found != curves_.end() && found->key == key) found->beyond = secondsPerByte;
}

void Profile::addSample(const CurveKey& key, const Point& sample) {
  const Order wanted{key.collective, key.where, key.algorithm};
  auto place = std::ranges::lower_bound(curves_, wanted, {}, orderOf);
  if (place == curves_.end() || place->key != key)
    place = curves_.insert(place, Curve{key, {}, {}});
  place->samples.push_back(sample);
}

void Profile::addSample(Pass pass, const LocalSample& sample) {
  auto& local = local_[static_cast<std::size_t>(pass)];
  if (!local) local.emplace();
  local->samples.push_back(sample);
}

void Profile::setLocal(Pass pass, Local local) {
  local_[static_cast<std::size_t>(pass)] = std::move(local);
}

void Profile::refit() {
  for (Curve& curve : curves_) fitCurve(curve);
  for (auto& local : local_)
    if (local) local->fit = fitFeatures(featurePoints(local->samples));
}

}  // namespace moeccl

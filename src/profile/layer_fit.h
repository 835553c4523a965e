// Whole layers: how much longer a schedule's exchanges and local work take within a layer than by
// themselves, where ranks wait for one another and caches are not warm.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace moeccl {

class Profile;

// A collective of a layer. `where`: its groups, which all make the call, as in CurveKey.
struct LayerExchange {
  std::string collective;
  std::vector<std::string> where;
  double bytes = 0;  // of a rank's send buffer

  bool operator==(const LayerExchange&) const = default;
};

struct LayerSample {
  std::vector<double> local;  // features of the local work, as featuresOf(LocalWork)
  std::vector<LayerExchange> exchanges;
  double seconds = 0;
  double spread = 0;

  bool operator==(const LayerSample&) const = default;
};

// seconds = local * (the local work's) + sum over the exchanges, each by its fastest algorithm, of
//           latency * (what it takes for no bytes) + bytes * (what it takes beyond that).
struct LayerFactors {
  double local = 1;
  double latency = 1;
  double bytes = 1;
  double medianError = 0;  // as in FitAgreement
  double worstError = 0;

  bool operator==(const LayerFactors&) const = default;
};

// A schedule's name and a pass's, and the grid as src/profile/group_text.h names it.
struct LayerKey {
  std::string schedule;
  std::string pass;
  std::string where;

  bool operator==(const LayerKey&) const = default;
};

struct LayerCurve {
  LayerKey key;
  std::vector<LayerSample> samples;
  LayerFactors factors;

  bool operator==(const LayerCurve&) const = default;
};

// What factors may be; samples that want more are wrong, or others ran beside them.
inline constexpr double kLeastFactor = 0.25, kMostFactor = 4;
// Errors beyond are told as this.
inline constexpr double kMostError = 1e30;

// By least squares of relative errors, each factor drawn to 1 as if a hundredth of a sample (of
// bytes a tenth) had said so: it decides where samples do not. By the rest of `profile`; samples
// whose exchanges or local work that does not predict are left out, and where none remain factors
// are 1.
LayerFactors fitFactors(const Profile& profile, const LayerKey& key,
                        std::span<const LayerSample> samples);

}  // namespace moeccl

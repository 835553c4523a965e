// A profile: what was measured on a cluster, and what was fitted to it. As a file it is JSON;
// src/model/profile_json.cc describes it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/schedules/schedule.h"
#include "src/model/correction.h"
#include "src/model/fit.h"
#include "src/model/links.h"

namespace moeccl {

// Which cluster a profile is good for.
struct Fingerprint {
  std::vector<int> ranksPerNode;
  std::string processor;  // as hwloc calls it
  int processorsPerNode = 0;
  std::string transport;     // "ucx 1.13.1", "loopback"
  std::string library;       // moeccl's version, "0.1.0"
  std::string network = {};  // between nodes, "1000 Mb/s MTU 1500"; empty: not known, or one node

  bool operator==(const Fingerprint&) const = default;
};

// What keeps a profile made by `theirs` from being used by `mine`: "it was made for 2 nodes of 4
// ranks, here are 4 nodes of 4 ranks; ...". Empty where nothing does. Versions of the library and
// of the transport may differ in their third number: they have the same algorithms. Networks are
// compared where both know theirs.
std::string differences(const Fingerprint& mine, const Fingerprint& theirs);

// What was measured. To the profile these are texts; whoever measures and whoever asks must agree
// on them.
struct CurveKey {
  std::string collective;  // as nameOf(Collective)
  std::string algorithm;   // as in MOECCL_ALGO
  std::string where;       // the group, as src/model/group_text.h names it: "2x4", "2x1, alone"

  bool operator==(const CurveKey&) const = default;
};

// x: bytes of one rank's send buffer.
struct Curve {
  CurveKey key;
  std::vector<Point> samples;
  Fit fit;
  std::vector<Correction> corrections = {};  // by Profile, from the samples and the fit
  double beyond = 0;  // seconds per byte, by growBeyond() (src/model/link_fit.h); 0: unknown

  // Between two sizes that were measured, the straight line from one prediction to the other.
  // Beyond the largest it grows by `beyond`. Where that is unknown, along the line through the last
  // two. Where that has no slope, as through samples that were disturbed or are too small, it tells
  // nothing there: then as if each byte took what those of the largest sample took.
  double seconds(double bytes) const;
  bool operator==(const Curve&) const = default;
};

// What one rank computes by itself in a MoE layer.
struct LocalWork {
  double tokens = 0;      // that it routes
  double embedding = 0;   // elements of a token
  double hidden = 0;      // of an expert's inner layer, or what its shard has of it
  double experts = 0;     // that a token chooses among; twice that with noisy top-k
  double choices = 0;     // experts per token
  double rows = 0;        // that go through the rank's experts
  double ownExperts = 0;  // the rank's

  bool operator==(const LocalWork&) const = default;
};

// Its kinds, each of which takes one rate in a pass: the layer itself, the multiplications of the
// gate's product and of the experts' products, the elements of the weights, however few rows there
// are for them, the elements that an activation is computed of, the elements that are moved.
enum LocalFeature { kLayer, kGate, kProducts, kWeights, kActivations, kMoves };
inline constexpr std::size_t kLocalFeatures = 6;
inline constexpr std::array<const char*, kLocalFeatures> kLocalFeatureNames = {
    "layer", "gate", "products", "weights", "activations", "moves"};
std::array<double, kLocalFeatures> featuresOf(const LocalWork& work);

// Measured while all ranks of the node work.
struct LocalSample {
  LocalWork work;
  double seconds = 0;
  double spread = 0;

  bool operator==(const LocalSample&) const = default;
};

struct Local {
  std::vector<LocalSample> samples;
  FeatureFit fit;

  bool operator==(const Local&) const = default;
};

const char* nameOf(Pass pass);  // "forward", "backward"

// The links by which plans are priced where nothing is measured, and how far they are off where it
// is: errors as in FitAgreement.
struct LinkFit {
  Links links;
  double medianError = 0;
  double worstError = 0;

  bool operator==(const LinkFit&) const = default;
};

// Look-ups neither allocate nor take longer than the logarithm of the number of curves.
class Profile {
 public:
  Fingerprint fingerprint;
  std::string date;     // for people
  std::string command;  // which measured, for people
  double duration = 0;  // seconds that it took, for people; 0: unknown
  // Why it may be wrong, for people: what was busy or impossible while it was measured. A profile
  // has these only where somebody insisted on it.
  std::vector<std::string> doubts;
  std::optional<LinkFit> links;  // src/model/link_fit.h

  // By collective, then group, then algorithm.
  std::span<const Curve> curves() const { return curves_; }
  // The algorithms of one collective in one group.
  std::span<const Curve> curves(std::string_view collective, std::string_view where) const;
  // The least that any of these takes for no bytes; infinity where there are none.
  double latency(std::string_view collective, std::string_view where) const;
  const Curve* find(std::string_view collective, std::string_view algorithm,
                    std::string_view where) const;
  // Nothing where the pass was not measured.
  const Local* local(Pass pass) const;

  // Fits a new curve. Throws InvalidArgument for one that is there already, and what fitLine
  // refuses.
  void add(CurveKey key, std::vector<Point> samples);
  // Adds a sample to a curve or a pass, which may be new. No fit changes before refit().
  void addSample(const CurveKey& key, const Point& sample);
  void addSample(Pass pass, const LocalSample& sample);
  // Sets by how much a curve grows beyond its samples; no other fit changes.
  void setBeyond(const CurveKey& key, double secondsPerByte);
  // With fits that are made already.
  void setCurves(std::vector<Curve> curves);
  void setLocal(Pass pass, Local local);
  // Makes all fits but that of links anew, from the samples. Throws what fitLine and fitFeatures
  // refuse.
  void refit();

  bool operator==(const Profile&) const = default;

 private:
  std::vector<Curve> curves_;  // ordered as curves() says
  std::array<std::optional<Local>, 2> local_;
};

// Text and data: parseProfile(printProfile(profile)) == profile, bit for bit. Both throw
// InvalidArgument for what no profile has, naming the place ("curves[3].samples[2].seconds is -1;
// ...").
Profile parseProfile(std::string_view text);
std::string printProfile(const Profile& profile);

inline constexpr std::size_t kMaxProfileBytes = std::size_t{64} << 20;

// The same with files; errors name the file, and the operating system's (SystemError) the reason. A
// file is replaced at once: nobody sees half of it.
Profile loadProfile(const std::string& path);
void saveProfile(const Profile& profile, const std::string& path);

}  // namespace moeccl

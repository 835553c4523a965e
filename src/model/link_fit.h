// What links cost, from what collectives cost on them: the links on which the prices of all
// measured plans come nearest to what was measured. So clusters that nobody has measured are priced
// by links like those of one that somebody has.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "src/model/price.h"
#include "src/model/profile.h"

namespace moeccl {

// The samples of a profile whose plans can be made: those of known algorithms, one expert per rank,
// on groups of the profile's cluster.
class LinkSamples {
 public:
  // What a curve takes more at one size than at another.
  struct Growth {
    double from, to;  // bytes
    double seconds;
  };
  // A curve whose plans can be made.
  struct Priced {
    NodePrice price;
    Sharing sharing;
    double blocks;  // of a rank's send buffer
    std::vector<Point> samples;
    std::optional<Growth> growth;  // where there are two sizes
  };
  // Takes the curves of groups of at most `mostRanks` ranks; 0: all.
  explicit LinkSamples(const Profile& profile, int mostRanks = 0);

  std::size_t size() const { return samples_; }
  // The samples must not be none for either.
  // How far prices on `links` are off.
  LinkFit judge(const Links& links) const;
  // Least squares of logarithms of price by measurement, large ones counting as in Huber's; then
  // again, the growth of curves of six sizes or more counting as much as all of their samples
  // where bytes are most of the last price. For an uplink may let small messages through faster
  // than its rate, after a pause. Costs that the samples do not tell stay as `typical` has them.
  // Ends when `enough` says so. `known`: a cost that stays close to the typical one, which was
  // measured by itself.
  LinkFit fit(
      const std::function<bool()>& enough = [] { return false; }, const Links& typical = {},
      double Links::*known = nullptr) const;

 private:
  std::vector<double> residualsOf(const std::vector<double>& logarithms, const Links& typical,
                                  double Links::*known,
                                  const std::vector<const Priced*>& growing) const;

  std::vector<Priced> curves_;
  std::size_t samples_ = 0;
};

// Nothing where no sample can be priced.
std::optional<LinkFit> fitLinks(
    const Profile& profile, const std::function<bool()>& enough = [] { return false; },
    const Links& typical = {}, double Links::*known = nullptr);

// Curves grow beyond their last sizes as the prices of their plans do on the profile's links, so
// that a sweep that was cut short does not extrapolate what its last two samples happen to say.
// Without links nothing changes.
void growBeyond(Profile& profile);

}  // namespace moeccl

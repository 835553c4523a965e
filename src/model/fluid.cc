// Computes when flows end: shares out the links among them, goes on to the moment at which the next
// one ends, and shares them out anew.
#include "src/model/fluid.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace moeccl {
namespace {

constexpr double kForEver = std::numeric_limits<double>::infinity();

// Progressive filling: all messages grow alike until a link is full, which settles those that pass
// it; then the others go on.
class Filling {
 public:
  Filling(std::span<const Flow> flows, std::span<const double> capacities)
      : flows_(flows), left_(capacities.begin(), capacities.end()), messages_(left_.size()) {}

  // The rate of each flow, all its messages together; 0 for a flow with nothing `remaining`.
  std::vector<double> rates(std::span<const double> remaining) {
    std::vector<double> rates(flows_.size(), 0);
    std::vector<bool> grows(flows_.size());
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      grows[i] = remaining[i] > 0;
      if (!grows[i]) continue;
      for (int link : flows_[i].links)
        messages_[static_cast<std::size_t>(link)] += flows_[i].messages;
    }
    while (true) {
      const std::size_t full = fullFirst();
      if (full == left_.size()) return rates;
      const double share = shareOf(full);
      for (std::size_t i = 0; i < flows_.size(); ++i) {
        if (!grows[i] || std::ranges::count(flows_[i].links, static_cast<int>(full)) == 0) continue;
        grows[i] = false;
        rates[i] = share * flows_[i].messages;
        for (int link : flows_[i].links) {
          left_[static_cast<std::size_t>(link)] -= rates[i];
          messages_[static_cast<std::size_t>(link)] -= flows_[i].messages;
        }
      }
      messages_[full] = 0;
    }
  }

 private:
  double shareOf(std::size_t link) const {
    return messages_[link] > 0 ? std::max(left_[link], 0.0) / messages_[link] : kForEver;
  }
  std::size_t fullFirst() const {
    std::size_t first = left_.size();
    double least = kForEver;
    for (std::size_t link = 0; link < left_.size(); ++link)
      if (const double share = shareOf(link); share < least) {
        least = share;
        first = link;
      }
    return first;
  }

  std::span<const Flow> flows_;
  std::vector<double> left_;      // of each link's capacity
  std::vector<double> messages_;  // that grow, of each link
};

}  // namespace

std::vector<double> finishTimes(std::span<const Flow> flows, std::span<const double> capacities) {
  std::vector<double> ends(flows.size(), 0), remaining;
  for (const Flow& flow : flows)
    remaining.push_back(flow.messages > 0 && !flow.links.empty() ? flow.size : 0);
  for (double now = 0;;) {
    const std::vector<double> rates = Filling(flows, capacities).rates(remaining);
    double step = kForEver;
    for (std::size_t i = 0; i < flows.size(); ++i)
      if (rates[i] > 0) step = std::min(step, remaining[i] / rates[i]);
    if (step == kForEver) return ends;
    now += step;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!(rates[i] > 0)) continue;
      // A flow that ends with the first, but for rounding, ends with it.
      constexpr double kRounding = 1e-12;
      remaining[i] -= step * rates[i];
      if (remaining[i] > kRounding * flows[i].size) continue;
      remaining[i] = 0;
      ends[i] = now;
    }
  }
}

}  // namespace moeccl

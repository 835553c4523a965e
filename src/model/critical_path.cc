// Goes through the phases in their order. Each begins when its stream, the phases that it waits for
// and its link are free, and computing is done by one phase at a time.
#include "src/model/critical_path.h"

#include <algorithm>
#include <array>
#include <vector>

namespace moeccl {
namespace {

class Path {
 public:
  Path(const schedules::Schedule& schedule, bool background)
      : background_(background), streams_(static_cast<std::size_t>(schedule.streams), -1) {}

  void add(const schedules::Phase& phase, const PhasePrice& price) {
    int& before = streams_[static_cast<std::size_t>(phase.stream)];
    double time = before < 0 ? 0 : ends_[static_cast<std::size_t>(before)];
    for (const int other : phase.after)
      time = std::max(time, ends_[static_cast<std::size_t>(other)]);
    if (!background_) time = std::max(time, computed_);
    if (price.exchange > 0) {
      double& free = links_[static_cast<std::size_t>(price.link)];
      time = free = std::max(time, free) + price.exchange;
    }
    if (price.local > 0) time = compute(time, price.local);
    before = static_cast<int>(ends_.size());
    ends_.push_back(time);
  }

  double end() const { return ends_.empty() ? 0 : std::ranges::max(ends_); }

 private:
  double compute(double ready, double seconds) {
    const double begin = std::max(ready, computed_);
    computed_ = begin + seconds;
    if (background_) return computed_;
    const auto rest = [&](double& end) {
      if (end > begin) end += seconds;
    };
    std::ranges::for_each(ends_, rest);
    std::ranges::for_each(links_, rest);
    return computed_;
  }

  const bool background_;
  std::vector<int> streams_;  // by stream its last phase, or -1
  std::vector<double> ends_;  // by phase
  std::array<double, 2> links_{};
  double computed_ = 0;
};

}  // namespace

double criticalPath(const schedules::Schedule& schedule, std::span<const PhasePrice> prices,
                    bool background) {
  Path path(schedule, background);
  for (std::size_t i = 0; i < prices.size(); ++i) path.add(schedule.phases[i], prices[i]);
  return path.end();
}

}  // namespace moeccl

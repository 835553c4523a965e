// Shares out the time that is left by the weights of the units that are left, and estimates how
// long these will take.
#include "perf/fit/budget.h"

#include <algorithm>

namespace moeccl::perf {

std::size_t Budget::addPart(double weight, std::size_t units) {
  parts_.push_back({units > 0 ? weight / static_cast<double>(units) : 0, units});
  return parts_.size() - 1;
}

double Budget::share(const Part& part, double now) const {
  double weights = 0;
  for (const Part& other : parts_) weights += other.weight * other.unitsLeft();
  return weights > 0 ? (seconds_ - now) * part.weight / weights : 0;
}

double Budget::until(std::size_t part, double now) const { return now + share(parts_[part], now); }

void Budget::finishUnit(std::size_t part, double began, double now) {
  ++parts_[part].finished;
  parts_[part].spent += now - began;
}

double Budget::secondsLeft(double now) const {
  double left = 0;
  for (const Part& part : parts_)
    left += part.unitsLeft() * (part.finished > 0 ? part.spent / static_cast<double>(part.finished)
                                                  : share(part, now));
  return std::clamp(left, 0.0, std::max(seconds_ - now, 0.0));
}

std::size_t Budget::units() const {
  std::size_t units = 0;
  for (const Part& part : parts_) units += part.units;
  return units;
}

std::size_t Budget::finished() const {
  std::size_t finished = 0;
  for (const Part& part : parts_) finished += part.finished;
  return finished;
}

}  // namespace moeccl::perf

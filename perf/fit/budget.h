// How much of the time of a run each of its measurements may take.
#pragma once

#include <cstddef>
#include <vector>

namespace moeccl::perf {

// Parts (exchanges, collectives, layers) consist of units that count alike. What a unit leaves of
// its share goes to all that come later.
class Budget {
 public:
  explicit Budget(double seconds) : seconds_(seconds) {}

  // Returns the part's number. `weight`: of the whole part, beside the others'.
  std::size_t addPart(double weight, std::size_t units);
  // When the next unit of a part should be over if it begins at `now`; a time that is not after
  // `now` where nothing is left. Seconds since the beginning, as all times here.
  double until(std::size_t part, double now) const;
  void finishUnit(std::size_t part, double began, double now);

  // The time that is still to come, if units take as long as the finished ones of their part.
  double secondsLeft(double now) const;
  std::size_t units() const;
  std::size_t finished() const;

 private:
  struct Part {
    double weight;  // of a unit
    std::size_t units;
    std::size_t finished = 0;
    double spent = 0;

    double unitsLeft() const { return static_cast<double>(units - finished); }
  };
  double share(const Part& part, double now) const;

  double seconds_;
  std::vector<Part> parts_;
};

}  // namespace moeccl::perf

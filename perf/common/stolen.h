// Whether a hypervisor gave the processors to others while something was timed.
#pragma once

#include <chrono>
#include <istream>

namespace moeccl::perf {

// Seconds, over all processors, that this machine wanted to run and was not let, since it started,
// from the text of /proc/stat; 0 where that does not say. In steps of a clock tick, mostly 10 ms.
double stolenSeconds(std::istream& stat);

// From its construction on. What was timed meanwhile is not what the machine takes by itself.
class StolenTime {
 public:
  StolenTime();
  // More than 2 % of the processors' time was stolen.
  bool disturbed() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double stolen_;
};

}  // namespace moeccl::perf

// The processors that ranks run on, and what other programs take of them meanwhile.
#pragma once

#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/fit/busy.h"

namespace moeccl::perf {

// What was used while something ran.
class Processors {
 public:
  // Finds out which ranks share a machine. Collective, as end() is.
  explicit Processors(const Job& job);

  void begin();
  // Since begin(): the texts of busy machines, joined, the same on all ranks; empty: none was busy.
  std::string end();

 private:
  struct Mine {
    double seconds;
    ProcessorTimes all;
    double own;
  };
  Mine now() const;

  const Job& job_;
  std::vector<std::vector<int>> machines_;  // ranks of each
  std::vector<int> processors_;             // of each
  std::vector<bool> counted_;               // of this rank's machine, by number
  Mine begin_{};
};

}  // namespace moeccl::perf

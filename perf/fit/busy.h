// Whether other programs take the processors that ranks run on. What is measured beside them is not
// what the cluster takes by itself.
#pragma once

#include <istream>
#include <string>
#include <vector>

namespace moeccl::perf {

// Seconds that some processors of a machine have worked since it started.
struct ProcessorTimes {
  double used = 0;    // by programs
  double stolen = 0;  // by the host of a virtual machine
};

// From the text of /proc/stat, of the processors whose numbers `counted` holds. Interrupts are
// nobody's. Zeros where the text does not say.
ProcessorTimes processorTimes(std::istream& stat, const std::vector<bool>& counted);

// What was used of the processors of one machine for some time.
struct MachineUse {
  int firstRank = 0;
  int ranks = 0;       // that run there
  int processors = 0;  // that these may run on
  double seconds = 0;
  ProcessorTimes all;
  double own = 0;  // of all.used by the ranks
};

// Whether others leave less than 90 % of a processor for each rank; of all processors, where there
// are more ranks than these. The kernel counts in ticks, so for 0.05 s nothing is taken.
bool isBusy(const MachineUse& use);

// "other programs take 1.97 of the 2 processors of rank 0's machine".
std::string textOf(const MachineUse& use);

}  // namespace moeccl::perf

// What the machine that a rank runs on is made of.
#pragma once

#include <string>
#include <vector>

namespace moeccl {

// The part of the machine that this process may use.
struct Hardware {
  std::string summary;    // "1 package, 2 cores, 2 PUs, 1 NUMA node, 24 GiB"
  std::string processor;  // its model; "" where hwloc does not know
  int processors = 0;     // PUs
  // OS numbers of the NUMA nodes whose cores the calling thread may run on, ascending.
  std::vector<int> numaNodes;
};
// By hwloc. Takes milliseconds; throws Error (moecclSystemError) when hwloc cannot look.
Hardware describeHardware();

}  // namespace moeccl

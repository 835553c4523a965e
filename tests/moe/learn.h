// How to run a layer forward and backward, for tests that have GoogleTest.
#pragma once

#include <string>
#include <vector>

#include "tests/moe/task.h"

namespace moeccl::test {

struct How {
  moecclSchedule_t schedule;
  std::string algorithms = "";
  bool ownStream = false, inPlace = false;
  int passes = 1;                       // forward and backward
  int backwards = 1;                    // in each pass
  double before = 0;                    // in the gradients
  bool onlyInput = false;               // no gradients of weights
  bool afterOthers = false;             // after a pass over other tokens
  double tolerance = 0;                 // 0: that of the datatype
  bool ucx = false, processes = false;  // as in Job
};

// Runs forward and backward, and fails the test where a rank's gradients are not what the reference
// says. Gradients by rank; of processes none come back.
std::vector<Learned> learn(const Task& task, const How& how);

}  // namespace moeccl::test

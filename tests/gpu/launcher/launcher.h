// Starts the ranks of a job as processes, watches which test and which step of it each is in, and
// ends them when one has died or has said nothing for too long.
//
// What a rank says, a line each, on the file descriptor kReports:
//
//     begin TEST        it begins the test of this number
//     step TEXT         what it does now
//     fail TEXT         a step of the test has failed; it goes on
//     end TEST STEPS    the test is over, after so many steps
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace moeccl::gpu {

inline constexpr int kReports = 3;

struct Launch {
  int ranks = 1;
  std::vector<std::string> tests;   // names, by number
  std::chrono::milliseconds limit;  // how long a rank may say nothing
  std::string context;              // printed behind the tests' names: "on 2+2 ranks"
  // What a rank is started with: the program and its arguments, and NAME=VALUE, for what is not in
  // the environment already.
  std::function<std::vector<std::string>(int rank)> command = {}, environment = {};
};

struct Counts {
  int passed = 0, failed = 0;
  // The first so many tests have passed, failed, or have no step on this many ranks.
  std::size_t done = 0;
};

// Prints a line for each test, and what failed in it. Where the job had to be ended, some tests
// have not been done. Throws std::runtime_error when a rank cannot be started.
Counts launch(const Launch& launch);

}  // namespace moeccl::gpu

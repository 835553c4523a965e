// Passes around a caller's gate and experts, on a host or on a GPU. Numbers are chosen so that all
// of them are exact.
#pragma once

#include <span>
#include <vector>

#include "tests/api/device.h"
#include "tests/moe/problem.h"

namespace moeccl::test {

struct OwnProblem {
  Problem problem;  // chunks: that the layer has chosen itself, until its first pass
  moecclSchedule_t schedule;
};
// Few grids, with and without capacity, with no, one and more tokens, under each schedule; and S1
// in chunks.
std::vector<OwnProblem> ownProblems(std::span<const moecclDataType_t> datatypes);

// A pass forward and backward; throws what is wrong. Ranks call it together.
void runOwnPass(DeviceMemory& device, const Problem& problem, moecclSchedule_t schedule,
                moecclGrid_t grid, int rank, moecclStream_t stream);

}  // namespace moeccl::test

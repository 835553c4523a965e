// Runs plans on numbers, in an order drawn at random: what an executor would do to them. It is
// slow, shares nothing with the verifier, and proves nothing; it is there to contradict the
// verifier.
#pragma once

#include <random>
#include <span>
#include <string>

#include "algorithms/plan.h"
#include "src/verify/verify.h"

namespace moeccl::testing {

// The two machines that verify.h describes.
enum class Machine { byDependencies, byStreams };

// Runs them so many times, each in another order. Empty when every op completed and every output
// block holds what it must; else what went wrong first.
std::string interpret(const Promise& promise, std::span<const Plan> plans, Machine machine,
                      std::mt19937& random, int times = 1);

}  // namespace moeccl::testing

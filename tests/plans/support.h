// What the tests of plans share: plans of whole jobs, and topologies to try them on.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "algorithms/topology.h"
#include "src/verify/verify.h"

namespace moeccl::testing {

Contract contractOf(Collective collective, const Topology& topology, const Parameters& parameters);

// A grid, and experts, for collectives that need them; what others ignore.
Parameters randomGrid(std::mt19937& random, int ranks);
// Every grid of `ranks` ranks with at most `most` ranks to a group, in both orders.
std::vector<Grid> gridsOf(int ranks, int most);
std::string nameOf(const Parameters& parameters);

// The plans of all ranks, or nothing where the algorithm is not offered.
std::optional<std::vector<Plan>> plansOf(const Algorithm& algorithm, const Topology& topology,
                                         const Parameters& parameters = {});

// "alltoall_linear"; also the name of a parameterised test.
std::string nameOf(const Algorithm& algorithm);
// "0 0 1 2 1": the node of every rank.
std::string nameOf(const Topology& topology);
// All violations, one a line.
std::string text(const std::vector<Violation>& violations);

// Every way to cut `ranks` consecutive ranks into nodes, order included: 2^(ranks - 1) of them.
std::vector<Topology> compositions(int ranks);
// Rank r on node r modulo `nodes`.
Topology roundRobin(int ranks, int nodes);
// Up to `most` ranks on nodes of random, uneven sizes; ranks of a node are not consecutive.
Topology randomTopology(std::mt19937& random, int most);

}  // namespace moeccl::testing

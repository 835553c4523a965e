// What links cost: alphas and betas of messages in a node and between nodes, for plans of
// collectives that nobody has measured.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "moeccl/model.h"

namespace moeccl {

// Seconds, in the manner of LogGP; betas are per byte. A message takes work, half of it of each
// end, and arrives `latency` after it was sent; latencies of messages that are under way together
// pass together. The values here are those of typical links.
struct Links {
  double overheadInNode = 0.3e-6, latencyInNode = 0.5e-6, betaInNode = 0.2e-9;   // shared memory
  double overheadBetween = 5e-6, latencyBetween = 15e-6, betaBetween = 0.02e-9;  // between nodes
  // What a message takes of its node's uplink, which all ranks share.
  double gapUplink = 2e-6, betaUplink = 0.8e-9;
  // By how much more than a few messages of a rank at once slow each other down: a part of their
  // time for each of the others.
  double crowding = 0.01;
  // Copies, also to gather what is sent, and reductions, by what they read.
  double betaMemory = 0.1e-9;

  bool operator==(const Links&) const = default;
};

// Typical ones of GPUs: NVLink in a node, and a network port of 400 Gb/s for each GPU.
inline constexpr Links kGpuLinks = {.overheadInNode = 1e-6,
                                    .latencyInNode = 5e-6,
                                    .betaInNode = 0.005e-9,
                                    .overheadBetween = 2e-6,
                                    .latencyBetween = 15e-6,
                                    .betaBetween = 0.022e-9,
                                    .gapUplink = 0.2e-6,
                                    .betaUplink = 0.003e-9,
                                    .betaMemory = 0.0007e-9};

// The same of those without NVLink: PCIe in a node, and one port of 100 Gb/s for all of its GPUs.
inline constexpr Links kPcieLinks = {.overheadInNode = 1e-6,
                                     .latencyInNode = 8e-6,
                                     .betaInNode = 0.05e-9,
                                     .overheadBetween = 2e-6,
                                     .latencyBetween = 20e-6,
                                     .betaBetween = 0.088e-9,
                                     .gapUplink = 0.2e-6,
                                     .betaUplink = 0.08e-9,
                                     .betaMemory = 0.003e-9};

// What is taken for granted of a cluster that nobody has measured.
struct Typical {
  Links links = {};
  moecclLinks_t kind = moecclLinksHost;

  // Ranks have a GPU each, and executors functions of their own: see Algorithm::native.
  bool onGpus() const { return kind != moecclLinksHost; }
};
constexpr Typical typicalOf(moecclLinks_t kind) {
  if (kind == moecclLinksNvlink) return {kGpuLinks, kind};
  if (kind == moecclLinksPcie) return {kPcieLinks, kind};
  return {};
}

inline constexpr std::size_t kLinkCosts = 10;
inline constexpr std::array<std::pair<const char*, double Links::*>, kLinkCosts> kLinkNames = {{
    {"overheadInNode", &Links::overheadInNode},
    {"latencyInNode", &Links::latencyInNode},
    {"betaInNode", &Links::betaInNode},
    {"overheadBetween", &Links::overheadBetween},
    {"latencyBetween", &Links::latencyBetween},
    {"betaBetween", &Links::betaBetween},
    {"gapUplink", &Links::gapUplink},
    {"betaUplink", &Links::betaUplink},
    {"crowding", &Links::crowding},
    {"betaMemory", &Links::betaMemory},
}};

}  // namespace moeccl

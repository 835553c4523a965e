// A small profile that has everything.
#pragma once

#include "src/model/profile.h"

namespace moeccl {

inline std::vector<Point> lineOf(double alpha, double beta) {
  std::vector<Point> points;
  for (double x = 64; x <= 1 << 24; x *= 8) points.push_back({x, alpha + beta * x, 0.01});
  return points;
}

inline Profile sampleProfile() {
  Profile profile;
  profile.fingerprint = {{4, 4}, "Some \"CPU\" @ 2 GHz", 8, "ucx 1.13.1", "0.1.0"};
  profile.date = "2026-01-02";
  profile.command = "moeccl-fit\t\xc3\xa9";
  profile.duration = 120.25;
  profile.doubts = {"node 0 was \"busy\"", "one more"};
  profile.add({"alltoall", "b:radix=4", "4+4"}, lineOf(1e-5, 1e-9));
  profile.add({"alltoall", "a", "4+4"}, lineOf(3e-5, 1.0 / 3 * 1e-9));
  profile.add({"alltoall", "a", "4"}, lineOf(1e-6, 1e-10));
  std::vector<Point> jump;
  for (double x = 64; x < 1e6; x *= 2) jump.push_back({x, x < 8192 ? 1e-5 : 5e-5 + 1e-9 * x, 0});
  profile.add({"exchange", "between nodes", "4+4"}, jump);
  for (double tokens : {64, 512, 1024})
    for (double hidden : {64, 256}) {
      const LocalWork work{tokens, 128, hidden, 8, 2, tokens / 2 + hidden, 4};
      const auto features = featuresOf(work);
      const double seconds = 1e-5 + 1e-10 * features[1] + 2e-10 * features[2];
      profile.addSample(Pass::forward, {work, seconds, 0.02});
      profile.addSample(Pass::backward, {work, 2 * seconds, 0.02});
    }
  profile.refit();
  profile.links = LinkFit{{.overheadInNode = 1e-6, .betaUplink = 1.0 / 3 * 1e-9}, 0.1, 0.7};
  return profile;
}

}  // namespace moeccl

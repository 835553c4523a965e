// What a pass of a layer costs by its schedule's value: its exchanges, and its local work, with the
// numbers of the layer. tests/api/schedule_terms_test.cc holds this against the calls that a layer
// makes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms/collective.h"
#include "algorithms/schedules/schedule.h"
#include "moeccl/moe.h"
#include "src/profile/profile.h"

namespace moeccl {

// The numbers of a layer that costs depend on.
struct LayerSizes {
  Grid grid;
  std::int64_t elementBytes;
  std::int64_t tokens;     // of one MP group, B L
  std::int64_t embedding;  // M
  std::int64_t localHidden;
  std::int64_t experts;     // E
  std::int64_t choices;     // k
  std::int64_t width;       // choices that a token has room for: k, or E where experts choose
  std::int64_t logits;      // columns of the gate's matrices: E, or 2 E with noisy top-k
  std::int64_t sums;        // doubles that the gate sums up over a part
  std::int64_t capacity;    // T; not looked at if dropless
  bool dropless;            // experts get the mean: k B L / E tokens of an MP group
  std::int64_t residual;    // hidden size of the residual branch; 0: none
  std::int64_t partTokens;  // of one rank of the MP group under S1
  std::int64_t partGroups;  // capacity groups of these; 0: S1 cannot cut them
  std::int64_t chunks;      // into which S1 cuts them; 0: as the model chooses, to termsOf 1

  bool operator==(const LayerSizes&) const = default;
};

// A call that every rank of every group of a kind makes.
struct Exchange {
  const char* name;  // the phase, as in the layer's errors
  Collective collective;
  GroupKind group;
  double bytes;  // of a rank's send buffer
  int times = 1;
};

struct ScheduleTerms {
  std::vector<Exchange> exchanges;
  std::array<double, kLocalFeatures> local{};  // as featuresOf(LocalWork)
};

// Whether the grid and the layer allow it is not looked at.
ScheduleTerms termsOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes);

}  // namespace moeccl

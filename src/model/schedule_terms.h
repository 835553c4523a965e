// What a pass of a layer costs by its schedule's value, with the sizes that it runs with: of each
// phase its exchange, and its local work.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "algorithms/collective.h"
#include "src/model/layer_shape.h"
#include "src/model/profile.h"

namespace moeccl {

enum class Routed : std::uint8_t { no, dispatch, combine };

// A call that every rank of every group of a kind makes.
struct Exchange {
  const char* name;  // the phase, as in the layer's errors
  Collective collective;
  GroupKind group;
  double bytes;  // of a rank's send buffer; of token routing those of its tokens
  int times = 1;
  Routed routed = Routed::no;  // of token routing, whatever `collective` says
};

using LocalFeatures = std::array<double, kLocalFeatures>;  // as featuresOf(LocalWork)

struct ScheduleTerms {
  std::vector<Exchange> exchanges;
  // A phase's exchange, or -1, with the number of its calls; and the phase's share of the local
  // work.
  struct Phase {
    int exchange = -1;
    int calls = 1;
    LocalFeatures local{};
  };
  std::vector<Phase> phases;

  // The local work of the whole pass.
  LocalFeatures local() const;
};

// The value that such a layer runs by.
const schedules::Schedule& valueOf(const LayerShape& shape, Pass pass);
// Without capacity experts get the mean, k B L / E tokens of an MP group.
ScheduleTerms termsOf(const LayerShape& shape, Pass pass);

}  // namespace moeccl

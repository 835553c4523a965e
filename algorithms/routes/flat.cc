// flat: a row for each choice, straight to each rank that holds the expert.
//
//   source --row of each choice--> rank of the expert
//
// Rows that leave a node, for each token: its choices elsewhere, times their shards there; the same
// back.
#include "algorithms/routes/route.h"

namespace moeccl::routes {

Way flat() {
  return {.relay = [](const Topology&, int source, int) { return source; }, .rowPerChoice = true};
}

}  // namespace moeccl::routes

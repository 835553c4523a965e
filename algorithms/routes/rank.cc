// rank: a token once to each rank that holds one of its experts, where it is copied for each of
// them.
//
//   source --row--> each rank with an expert of it
//
// Rows that leave a node, for each token: as many as there are such ranks elsewhere. Back: as with
// flat, since sums are made by expert.
#include "algorithms/routes/route.h"

namespace moeccl::routes {

Way rank() {
  return {.relay = [](const Topology&, int source, int) { return source; }};
}

}  // namespace moeccl::routes

// Calls of any collective through the public API, on data of which every element is known, checked
// against the collective's contract.
#pragma once

#include <string>

#include "algorithms/registry.h"
#include "moeccl/moeccl.h"
#include "tests/api/device.h"

namespace moeccl::test {

struct Exercise {
  Collective collective = Collective::allToAll;
  std::size_t count = 1;  // elements of a block; of allToAllv: of the largest
  moecclDataType_t datatype = moecclFloat32;
  moecclRedOp_t op = moecclSum;
  bool inPlace = false;
  bool bounded = false;  // allToAllv by the function that is given `count` as a bound
  int experts = 1;
  unsigned salt = 0;
  // Where the buffers and streams are of; nullptr: the host.
  Device* device = nullptr;
  // On a device: then once more, captured into a graph that is replayed. Not on the NULL stream.
  bool inGraph = false;
};

// "float32".
const char* nameOf(moecclDataType_t type);
// "allreduce in place, count 333, float32, op 0, experts 1".
std::string textOf(const Exercise& what);

// `grid`: only collectives of a grid use it, others use `comm`. Throws what went wrong.
void exercise(const Exercise& what, moecclComm_t comm, moecclGrid_t grid, moecclStream_t stream);

// Whether the collective can be used in place.
bool worksInPlace(Collective collective);
bool reduces(Collective collective);

}  // namespace moeccl::test

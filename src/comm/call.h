// One call of a collective, as the caller made it. A value; it may wait in a stream.
#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/extents.h"
#include "moeccl/moeccl.h"
#include "src/comm/plan_cache.h"

namespace moeccl {

struct Call {
  AlgorithmChoice choice;  // its collective, and how
  const void* input;
  void* output;
  std::size_t blockBytes;  // where all blocks are equally large
  moecclDataType_t datatype = moecclUint8;
  moecclRedOp_t op = moecclSum;
  // Where they are not (allToAllv): by rank.
  std::vector<Extent> inputTable = {}, outputTable = {};

  Collective collective() const { return choice.algorithm->collective; }
};

}  // namespace moeccl

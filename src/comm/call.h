// One call of a collective, as the caller made it. A value; it may wait in a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
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
  // A plan of the caller's instead of the choice's. Its blocks are as the tables say, or all of blockBytes bytes.
  std::shared_ptr<CachedPlan> own = {};
  // Sums are weighted by these (placement.h), which, like what `before` needs, `keep` owns.
  std::span<const float> inputWeights = {}, scratchWeights = {};
  std::shared_ptr<const void> keep = {};
  // What this rank does when the call begins, in the order of its stream. It takes the domain's time, and cannot fail.
  std::function<void()> before = {};
  // By which ranks agree on something inside another function, such as moecclCommSplit.
  bool agreement = false;

  // Of a choice.
  Collective collective() const { return choice.algorithm->collective; }
  bool sized() const { return own ? !inputTable.empty() : collective() == Collective::allToAllv; }
};

// What all ranks of a call must have alike.
struct CallSignature {
  const CachedPlan* plan = nullptr;     // of a choice
  std::shared_ptr<const PlanName> own;  // of a call with a plan of its own
  std::size_t blockBytes = 0;           // 0 where blocks may differ
  moecclDataType_t datatype = moecclUint8;
  moecclRedOp_t op = moecclSum;
  bool agreement = false;

  CallSignature() = default;
  CallSignature(const CachedPlan& plan, const Call& call);
  // Equal on ranks that call the same.
  std::uint64_t digest() const;
  // "allreduce (linear) of 4 x float32, max"
  std::string text() const;
};

std::uint64_t digestOf(const AlgorithmChoice& choice);

}  // namespace moeccl

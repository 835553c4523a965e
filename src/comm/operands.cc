// Blocks lie by tables of the call, at equal distances, or cut into pieces. A table for scratch is
// made where its blocks differ in size.
#include "src/comm/operands.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "kernels/reduce.h"
#include "src/base/error.h"

namespace moeccl {

namespace {

using Scratch = std::vector<Extent>;

// Blocks of scratch lie one behind the other; bytesOf(i) says how large the one of number i is.
template <typename BytesOf>
void layScratch(const Plan& plan, const BytesOf& bytesOf, Scratch* scratch, Operands* operands) {
  scratch->clear();
  for (std::size_t i = 0; i < plan.scratch.size(); ++i) {
    const std::size_t bytes = bytesOf(i);
    // Others may tell any sizes.
    if (bytes > SIZE_MAX - operands->scratchBytes) throw std::bad_alloc();
    scratch->push_back({operands->scratchBytes, bytes});
    operands->scratchBytes += bytes;
  }
  operands->scratchExtents = Extents::table(*scratch);
}

// Blocks lie by the call's tables.
void layByTables(const PlannedCall& call, Operands* operands) {
  operands->inputExtents = Extents::table(call.inputTable);
  operands->outputExtents = Extents::table(call.outputTable);
}

// Relays were told the sizes in a first part of the call.
void layAsTold(const PlannedCall& call, const Plan& plan, const std::byte* told, Scratch* scratch,
               Operands* operands) {
  layByTables(call, operands);
  const auto bytesOf = [&](std::size_t i) {
    std::uint64_t bytes;
    std::memcpy(&bytes, told + i * sizeof bytes, sizeof bytes);
    return static_cast<std::size_t>(bytes);
  };
  layScratch(plan, bytesOf, scratch, operands);
}

// Relays have room for the largest block.
void layPadded(const PlannedCall& call, const Plan& plan, Operands* operands) {
  layByTables(call, operands);
  operands->paddedBytes = call.blockBytes;
  operands->scratchExtents = Extents::uniform(call.blockBytes);
  operands->scratchBytes = call.blockBytes * plan.scratch.size();
}

// All ranks know the size of each rank's block.
void layByRank(const CollectiveCall& call, const Plan& plan, Scratch* scratch, Operands* operands) {
  if (plan.pieces != 1) throw Error(moecclInternalError, "a plan cuts blocks that differ in size");
  const bool gathers = call.collective == Collective::allGatherv;
  layByTables(call, operands);
  const auto bytesOf = [&](std::size_t i) {
    const Payload payload = plan.scratch[i];
    return call.rankBytes[static_cast<std::size_t>(gathers ? payload.rank : payload.block)];
  };
  layScratch(plan, bytesOf, scratch, operands);
}

void layEvenly(const PlannedCall& call, const Plan& plan, Scratch* scratch, Operands* operands) {
  const Extents extents = Extents::cut(call.blockBytes, plan.pieces, sizeOf(call.datatype));
  operands->inputExtents = operands->outputExtents = operands->scratchExtents = extents;
  if (extents.isUniform()) {
    operands->scratchBytes = extents[0].bytes * plan.scratch.size();
    return;
  }
  const auto bytesOf = [&](std::size_t i) {
    return extents[plan.scratch[i].block % plan.pieces].bytes;
  };
  layScratch(plan, bytesOf, scratch, operands);
}

bool knowsAllSizes(Collective collective) {
  return collective == Collective::allGatherv || collective == Collective::reduceScatterv;
}

}  // namespace

Operands operandsOf(const Call& call, const Plan& plan, const std::byte* told,
                    std::vector<Extent>* scratch) {
  const PlannedCall& it = *call.planned();
  const CollectiveCall* const collective = call.collective();
  Operands operands;
  operands.input = static_cast<const std::byte*>(it.input);
  operands.output = static_cast<std::byte*>(it.output);
  operands.datatype = it.datatype;
  if (collective != nullptr) operands.op = collective->op == moecclAvg ? moecclSum : collective->op;
  if (const RowsCall* const rows = call.rows(); rows != nullptr) {
    operands.inputWeights = rows->inputWeights;
    operands.scratchWeights = rows->scratchWeights;
    operands.zeros = rows->zeros;
    if (rows->weighing.rowBytes > 0) operands.weighing = &rows->weighing;
  }
  if (it.content != nullptr && plan.relays)
    operands.content = it.content;
  else if (isSized(call) && collective != nullptr && collective->bounded && plan.relays)
    layPadded(it, plan, &operands);
  else if (isSized(call))
    layAsTold(it, plan, told, scratch, &operands);
  else if (collective != nullptr && knowsAllSizes(collective->collective))
    layByRank(*collective, plan, scratch, &operands);
  else
    layEvenly(it, plan, scratch, &operands);
  return operands;
}

}  // namespace moeccl

// Blocks lie by tables of the call, at equal distances, or cut into pieces. A table for scratch is
// made where its blocks differ in size.
#include "src/comm/operands.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "kernels/reduce.h"
#include "src/base/error.h"

namespace moeccl {

Operands operandsOf(const Call& call, const Plan& plan, const std::byte* told,
                    std::vector<Extent>* scratch) {
  Operands operands;
  operands.input = static_cast<const std::byte*>(call.input);
  operands.output = static_cast<std::byte*>(call.output);
  operands.datatype = call.datatype;
  operands.op = call.op == moecclAvg ? moecclSum : call.op;
  const auto scratchOf = [&](auto bytesOf) {
    scratch->clear();
    for (std::size_t i = 0; i < plan.scratch.size(); ++i) {
      const std::size_t bytes = bytesOf(i);
      // Others may tell any sizes.
      if (bytes > SIZE_MAX - operands.scratchBytes) throw std::bad_alloc();
      scratch->push_back({operands.scratchBytes, bytes});
      operands.scratchBytes += bytes;
    }
    operands.scratchExtents = Extents::table(*scratch);
  };
  operands.inputWeights = call.inputWeights;
  operands.scratchWeights = call.scratchWeights;
  operands.zeros = call.zeros;
  if (call.weighing.rowBytes > 0) operands.weighing = &call.weighing;
  if (call.content != nullptr && plan.relays) {
    operands.content = call.content;
    return operands;
  }
  if (call.sized()) {
    operands.inputExtents = Extents::table(call.inputTable);
    operands.outputExtents = Extents::table(call.outputTable);
    if (call.bounded && plan.relays) {
      operands.paddedBytes = call.blockBytes;
      operands.scratchExtents = Extents::uniform(call.blockBytes);
      operands.scratchBytes = call.blockBytes * plan.scratch.size();
      return operands;
    }
    scratchOf([&](std::size_t i) {
      std::uint64_t bytes;
      std::memcpy(&bytes, told + i * sizeof bytes, sizeof bytes);
      return static_cast<std::size_t>(bytes);
    });
    return operands;
  }
  if (!call.own && (call.collective() == Collective::allGatherv ||
                    call.collective() == Collective::reduceScatterv)) {
    if (plan.pieces != 1)
      throw Error(moecclInternalError, "a plan cuts blocks that differ in size");
    const bool gathers = call.collective() == Collective::allGatherv;
    operands.inputExtents = Extents::table(call.inputTable);
    operands.outputExtents = Extents::table(call.outputTable);
    scratchOf([&](std::size_t i) {
      const Payload payload = plan.scratch[i];
      return call.rankBytes[static_cast<std::size_t>(gathers ? payload.rank : payload.block)];
    });
    return operands;
  }
  const Extents extents = Extents::cut(call.blockBytes, plan.pieces, sizeOf(call.datatype));
  operands.inputExtents = operands.outputExtents = operands.scratchExtents = extents;
  if (extents.isUniform()) {
    operands.scratchBytes = extents[0].bytes * plan.scratch.size();
  } else {
    scratchOf([&](std::size_t i) { return extents[plan.scratch[i].block % plan.pieces].bytes; });
  }
  return operands;
}

}  // namespace moeccl

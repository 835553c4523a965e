// Open passes: checks the buffers of each call, and moves their rows.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/reduce.h"
#include "moeccl/route.h"
#include "src/api/arguments.h"
#include "src/api/held_route.h"
#include "src/base/structs.h"
#include "src/comm/launch.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclRows_t> kRows = {"rows", "MOECCL_ROWS_INITIALIZER", MOECCL_ROWS_MAGIC,
                                            MOECCL_END_OF(moecclRows_t, deviceBegins),
                                            MOECCL_END_OF(moecclRows_t, experts)};

// What the library does not need must be NULL.
void requireNone(std::initializer_list<const void*> buffers, const char* text) {
  for (const void* const buffer : buffers) require(buffer == nullptr, text);
}

// Checks the buffers of a call, and its stream, and makes it.
template <typename Call>
void moveRows(const HeldPass& held, std::initializer_list<NamedBuffer> buffers,
              moecclStream_t stream, Call&& call) {
  Communicator& communicator = held.communicator();
  requireRoom(buffers);
  if (communicator.device())
    for (const NamedBuffer& buffer : buffers)
      if (buffer.element > 0) requireAligned(buffer.name, buffer.at, buffer.element);
  requireStream(communicator, stream);
  orRevoke(communicator, [&] { call(communicator); });
}

}  // namespace
}  // namespace moeccl

using moeccl::Communicator;
using moeccl::HeldPass;

moecclResult_t moecclPassEnd(moecclRoutePass_t pass) {
  if (pass == nullptr) return moecclSuccess;
  return moeccl::on<HeldPass>("moecclPassEnd", pass, [&](const HeldPass& held) {
    held.get();
    moecclRoute::end(*pass);
  });
}

moecclResult_t moecclPassGetRows(moecclRoutePass_t pass, moecclRows_t* rows) {
  return moeccl::on<HeldPass>("moecclPassGetRows", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.get();
    moecclRows_t ours = MOECCL_ROWS_INITIALIZER;
    ours.algorithm = it.algorithmName();
    ours.deviceBegins = it.deviceBegins();
    if (it.isCounted()) {
      moeccl::Communicator& communicator = held.communicator();
      const std::vector<std::int64_t>& begins = it.expertBegins(communicator);
      it.rankCounts(communicator, pass->counts.data());
      ours.rows = begins.back();
      ours.begins = begins.data();
      ours.counts = pass->counts.data();
      ours.weights = it.rowWeights();
      ours.experts = it.rowExperts();
      ours.dropped = it.dropped();
    }
    moeccl::writeStruct(moeccl::kRows, ours, rows);
  });
}

moecclResult_t moecclPassDispatch(moecclRoutePass_t pass, const void* tokens, void* rows,
                                  moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassDispatch", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.get();
    const std::size_t row = held.shape().rowBytes();
    moeccl::moveRows(
        held, {{"tokens", tokens, held.tokenBytes(row)}, {"rows", rows, held.rowsBytes(row)}},
        stream, [&](Communicator& on) { it.dispatch(on, tokens, rows, stream); });
  });
}

moecclResult_t moecclPassCombine(moecclRoutePass_t pass, const void* rows, void* output,
                                 moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassCombine", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getCounted();
    const std::size_t row = held.shape().combineRowBytes();
    const std::size_t element = moeccl::sizeOf(held.shape().datatype);
    moeccl::moveRows(held,
                     {{"rows", rows, held.rowsBytes(row), element},
                      {"output", output, held.tokenBytes(row), element}},
                     stream, [&](Communicator& on) { it.combine(on, rows, output, true, stream); });
  });
}

moecclResult_t moecclPassCombineBackward(moecclRoutePass_t pass, const void* outputGradients,
                                         const void* rows, void* rowGradients,
                                         void* weightGradients, moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassCombineBackward", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getForGradients();
    const std::size_t row = held.shape().combineRowBytes();
    const std::size_t element = moeccl::sizeOf(held.shape().datatype);
    const bool weighs = held.shape().weighs();
    if (!weighs)
      moeccl::requireNone({rows, weightGradients},
                          "rows and weightGradients must be NULL: with this config.weights Combine "
                          "multiplies by no weights");
    moeccl::moveRows(
        held,
        {{"outputGradients", outputGradients, held.tokenBytes(row), element},
         {"rows", rows, weighs ? held.rowsBytes(row) : 0, element},
         {"rowGradients", rowGradients, held.rowsBytes(row), element},
         {"weightGradients", weightGradients, weighs ? held.choicesBytes() : 0, sizeof(float)}},
        stream, [&](Communicator& on) {
          it.combineBackward(on, outputGradients, rows, rowGradients, weightGradients, stream);
        });
  });
}

moecclResult_t moecclPassDispatchBackward(moecclRoutePass_t pass, const void* rowGradients,
                                          const float* rowWeightGradients, void* tokenGradients,
                                          float* weightGradients, moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassDispatchBackward", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getForGradients();
    const std::size_t row = held.shape().combineRowBytes();
    const std::size_t element = moeccl::sizeOf(held.shape().datatype);
    const bool travel = held.shape().weights == moecclRouteWeightsRows;
    const auto perRow =
        static_cast<std::size_t>(held.shape().rowsByToken ? held.shape().choices : 1);
    if (!travel)
      moeccl::requireNone({rowWeightGradients, weightGradients},
                          "rowWeightGradients and weightGradients must be NULL unless "
                          "config.weights is moecclRouteWeightsRows");
    moeccl::moveRows(held,
                     {{"rowGradients", rowGradients, held.rowsBytes(row), element},
                      {"tokenGradients", tokenGradients, held.tokenBytes(row), element},
                      {"rowWeightGradients", rowWeightGradients,
                       travel ? held.rowsBytes(perRow * sizeof(float)) : 0},
                      {"weightGradients", weightGradients, travel ? held.choicesBytes() : 0}},
                     stream, [&](Communicator& on) {
                       it.combine(on, rowGradients, tokenGradients, false, stream);
                       if (travel)
                         it.returnWeights(on, rowWeightGradients, weightGradients, stream);
                     });
  });
}

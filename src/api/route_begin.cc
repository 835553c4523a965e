// Begins passes: checks what a rank brings to one, and tells the others if it is wrong.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "moeccl/route.h"
#include "src/api/arguments.h"
#include "src/api/held_route.h"
#include "src/base/structs.h"
#include "src/base/text.h"
#include "src/bootstrap/oob.h"
#include "src/comm/launch.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclRouting_t> kRouting = {
    "routing", "MOECCL_ROUTING_INITIALIZER", MOECCL_ROUTING_MAGIC,
    MOECCL_END_OF(moecclRouting_t, error), MOECCL_END_OF(moecclRouting_t, error)};

void requireDistinct(const RouteShape& shape, const Routing& routing) {
  for (std::int64_t token = 0; token < routing.tokens; ++token) {
    const std::int32_t* const its = routing.experts + token * shape.choices;
    for (int i = 1; i < shape.choices; ++i)
      if (its[i] >= 0 && std::find(its, its + i, its[i]) != its + i)
        invalid("routing.experts[" + std::to_string(token) + "][" + std::to_string(i) + "] is " +
                std::to_string(its[i]) +
                " again; in latency mode, or with a schedule, a token may have each expert once");
  }
}

// Throws Error for what is wrong whatever the choices are.
void checkTokens(const RouteShape& shape, const Routing& routing) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / shape.choices;
  if (routing.tokens < 0 || routing.tokens > most ||
      (shape.maxTokens > 0 && routing.tokens > shape.maxTokens))
    invalid("routing.tokens is " + std::to_string(routing.tokens) + "; it must be 0 to " +
            std::to_string(shape.maxTokens > 0 ? std::min(shape.maxTokens, most) : most));
  if (!shape.hasWeights())
    require(routing.weights == nullptr,
            "routing.weights is not NULL, but config.weights is moecclRouteWeightsNone");
  if (routing.tokens == 0) return;
  require(routing.experts != nullptr, "routing.experts is NULL while there are tokens");
  if (shape.hasWeights())
    require(routing.weights != nullptr,
            "routing.weights is NULL; each choice needs a weight unless config.weights is "
            "moecclRouteWeightsNone");
}

void checkChoices(const RouteShape& shape, const Routing& routing) {
  for (std::int64_t i = 0; i < routing.tokens * shape.choices; ++i)
    if (routing.experts[i] < -1 || routing.experts[i] >= shape.experts.count)
      invalid("routing.experts[" + std::to_string(i / shape.choices) + "][" +
              std::to_string(i % shape.choices) + "] is " + std::to_string(routing.experts[i]) +
              "; it must be an expert, 0 to " + std::to_string(shape.experts.count - 1) +
              ", or -1 for none");
  if (shape.latency || shape.scheduled) requireDistinct(shape, routing);
}

// Copies the caller's choices and weights to the host, and checks them.
Routing readRouting(moecclRoute& route, Communicator& communicator, Routing routing,
                    moecclStream_t stream) {
  checkTokens(route.shape, routing);
  const auto choices = static_cast<std::size_t>(routing.tokens * route.shape.choices);
  route.experts.resize(choices);
  route.weights.resize(route.shape.hasWeights() ? choices * route.shape.weightBytes() : 0);
  const Communicator::Reading readings[] = {
      {route.experts.data(), routing.experts, choices * sizeof(std::int32_t)},
      {route.weights.data(), routing.weights, route.weights.size()}};
  communicator.read(readings, stream);
  routing.experts = route.experts.data();
  routing.weights = route.shape.hasWeights() ? route.weights.data() : nullptr;
  checkChoices(route.shape, routing);
  return routing;
}

// to: where the caller wants the pass.
void begin(const HeldRoute& held, const moecclRouting_t* theirs, moecclStream_t stream,
           const moecclRoutePass_t* to, RoutePass& pass) {
  moecclRoute& route = held.get();
  Communicator& communicator = held.communicator();
  Routing routing{};
  const auto read = [&] {
    require(to != nullptr, "pass is NULL; pass where to store the pass");
    requireStream(communicator, stream);
    const moecclRouting_t given = readStruct(kRouting, theirs);
    if (given.error != nullptr) invalid(clipped(given.error, MOECCL_REVOKE_TEXT_BYTES));
    routing = {given.tokens, given.experts, given.weights};
    if (pass.beginsOnGpu()) return checkTokens(route.shape, routing);
    routing = readRouting(route, communicator, routing, stream);
  };
  if (route.shape.latency) {
    read();
    return pass.begin(communicator, routing, stream);
  }
  if (!pass.tellsOthers()) {
    // Nobody asks how the others fare, so they are told.
    if (const std::optional<Error> wrong = failureOf(read)) {
      communicator.revoke(wrong->what());
      throw *wrong;
    }
    return orRevoke(communicator, [&] { pass.begin(communicator, routing, stream); });
  }
  std::optional<Error> wrong = failureOf(read);
  // Nobody can be told in a capture.
  if (wrong && wrong->result() == moecclInvalidUsage) throw *wrong;
  routing.wrong = std::move(wrong);
  orRevoke(communicator, [&] { pass.begin(communicator, routing, stream); });
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclRouteBegin(moecclRoute_t route, const moecclRouting_t* routing,
                                moecclStream_t stream, moecclRoutePass_t* pass) {
  return moeccl::on<moeccl::HeldRoute>(
      "moecclRouteBegin", route, [&](const moeccl::HeldRoute& held) {
        moecclRoute& it = held.get();
        moecclRoutePass* made = nullptr;
        moeccl::orRevoke(held.communicator(), [&] { made = it.open(held.communicator()); });
        try {
          moeccl::begin(held, routing, stream, pass, *made->pass);
        } catch (...) {
          moecclRoute::end(*made);
          throw;
        }
        it.lastAlgorithm = made->pass->algorithmName();
        *pass = made;
      });
}

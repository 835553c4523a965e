// Token routing.
#include "moeccl/route.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "src/api/arguments.h"
#include "src/bootstrap/oob.h"
#include "src/comm/agreement.h"
#include "src/route/token_route.h"
#include "src/structs.h"
#include "src/text.h"

struct moecclTokenRoute {
  moecclTokenRoute(moecclComm_t of, std::shared_ptr<moeccl::TokenRoute> made)
      : comm(of), route(std::move(made)) {
    const moeccl::RouteShape& shape = route->shape();
    if (!shape.latency || route->isSetOnGpu()) return;
    // So that no Set allocates.
    const auto most = static_cast<std::size_t>(shape.maxTokens * shape.choices);
    chosen.reserve(most);
    weights.reserve(most);
  }

  moecclComm_t comm;  // of the grid
  std::shared_ptr<moeccl::TokenRoute> route;
  // What Set was given, on the host.
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
};

namespace moeccl {
namespace {

constexpr StructKind<moecclTokenRouteConfig_t> kRouteConfig = {
    "config", "MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER", MOECCL_TOKEN_ROUTE_CONFIG_MAGIC,
    MOECCL_END_OF(moecclTokenRouteConfig_t, numBuckets),
    MOECCL_END_OF(moecclTokenRouteConfig_t, numBuckets)};

constexpr int kMostChoices = 128;
// Of a rank, in latency mode: memory is there for all of them.
constexpr std::int64_t kMostLatencyTokens = 1024;

void requireBetween(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    invalid(std::string("config.") + field + " is " + std::to_string(value) + "; it must be " +
            std::to_string(least) + " to " + std::to_string(most));
}

std::vector<std::int64_t> bucketsOf(const moecclTokenRouteConfig_t& config) {
  if (config.numBuckets == 0) return {};
  if (config.mode != moecclRouteLatency)
    invalid("config.numBuckets is " + std::to_string(config.numBuckets) +
            "; only latency mode has buckets, so it must be 0");
  requireBetween("numBuckets", config.numBuckets, 0, config.maxTokens);
  require(config.buckets != nullptr, "config.buckets is NULL, and config.numBuckets is not 0");
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < config.numBuckets; before = config.buckets[i++])
    if (config.buckets[i] <= before || config.buckets[i] > config.maxTokens)
      invalid("config.buckets[" + std::to_string(i) + "] is " + std::to_string(config.buckets[i]) +
              "; it must be more than " + std::to_string(before) + " and at most maxTokens, " +
              std::to_string(config.maxTokens));
  return {config.buckets, config.buckets + config.numBuckets};
}

RouteShape shapeOf(const moecclTokenRouteConfig_t& config, const Grid& grid) {
  requireBetween("experts", config.experts, 1, routes::kMostExperts);
  requireBetween("topK", config.topK, 1, kMostChoices);
  requireBetween("weights", config.weights, 0, moecclRouteNumWeights - 1);
  // So that a row has an address whatever its elements are.
  requireBetween("hidden", config.hidden, 1, std::numeric_limits<std::int32_t>::max());
  requireBetween("mode", config.mode, 0, moecclRouteNumModes - 1);
  const bool latency = config.mode == moecclRouteLatency;
  requireBetween("maxTokens", config.maxTokens, latency ? 1 : 0,
                 latency ? kMostLatencyTokens : std::numeric_limits<std::int64_t>::max());
  if (!isWide(config.datatype) && !isFloat8(config.datatype))
    invalid("config.datatype is " + std::to_string(static_cast<int>(config.datatype)) +
            "; it must be moecclFloat32, Float16, Bfloat16, Float8e4m3 or Float8e5m2");
  if (isFloat8(config.datatype) && config.hidden % static_cast<std::int64_t>(kScaled) != 0)
    invalid(
        "config.hidden is " + std::to_string(config.hidden) +
        "; rows of a float8 have a scale for each 128 elements, so it must be a multiple of 128");
  moecclDataType_t combined = config.combineDatatype;
  if (static_cast<int>(combined) == 0)
    combined = isFloat8(config.datatype) ? moecclBfloat16 : config.datatype;
  if (!isWide(combined))
    invalid("config.combineDatatype is " + std::to_string(static_cast<int>(combined)) +
            "; it must be moecclFloat32, Float16 or Bfloat16, or 0");
  const routes::RouteAlgorithm* algorithm = nullptr;
  if (config.algorithm != nullptr && *config.algorithm != '\0') {
    algorithm = routes::findRouteAlgorithm(config.algorithm);
    if (algorithm == nullptr) {
      std::string names;
      for (const routes::RouteAlgorithm& each : routes::routeAlgorithms())
        names += (names.empty() ? "" : ", ") + std::string(each.name);
      invalid("config.algorithm is \"" + std::string(config.algorithm) + "\"; there are " + names);
    }
  }
  return {{grid, config.experts},
          config.topK,
          config.hidden,
          config.maxTokens,
          config.datatype,
          combined,
          config.weights == moecclRouteWeightsLibrary,
          algorithm,
          latency,
          bucketsOf(config)};
}

// Collective. Throws where rank 0 and another one have different values in the same place, which
// nameOf(place) names; all ranks have as many.
template <typename NameOf>
void requireSameValues(Communicator& communicator, std::span<const std::int64_t> mine,
                       const NameOf& nameOf) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(communicator.ranks()));
  communicator.allgather(mine.data(), all.data(), mine.size_bytes());
  for (std::size_t i = mine.size(); i < all.size(); ++i)
    if (const std::size_t place = i % mine.size(); all[i] != all[place])
      throw Error(moecclInvalidUsage, "ranks came with different configs: " + nameOf(place) +
                                          " is " + std::to_string(all[place]) + " on rank 0 and " +
                                          std::to_string(all[i]) + " on rank " +
                                          std::to_string(i / mine.size()));
}

void requireSame(Communicator& communicator, const RouteShape& shape) {
  struct Field {
    const char* name;
    std::int64_t value;
  };
  const std::array fields = {
      Field{"experts", shape.experts.count},
      Field{"topK", shape.choices},
      Field{"weights", shape.weighted ? 0 : 1},
      Field{"datatype", shape.datatype},
      Field{"combineDatatype", shape.combineDatatype},
      Field{"hidden", shape.hidden},
      Field{"mode", shape.latency ? 1 : 0},
      Field{"maxTokens", shape.maxTokens},
      Field{"numBuckets", std::ssize(shape.buckets)},
      Field{
          "algorithm (by its place among them, from 1; 0: automatic)",
          shape.algorithm == nullptr ? 0 : shape.algorithm - routes::routeAlgorithms().data() + 1}};
  std::array<std::int64_t, fields.size()> mine{};
  std::ranges::transform(fields, mine.begin(), &Field::value);
  requireSameValues(communicator, mine,
                    [&](std::size_t place) { return std::string(fields[place].name); });
  if (shape.buckets.empty()) return;
  requireSameValues(communicator, shape.buckets,
                    [](std::size_t place) { return "buckets[" + std::to_string(place) + "]"; });
}

// A route, and its communicator, as a function was given them.
struct HeldRoute {
  explicit HeldRoute(moecclTokenRoute_t route)
      : route(route),
        lives(route != nullptr &&
              findHandle(HandleKind::tokenRoute, route).state == HandleState::live),
        comm(lives ? hold(route->comm) : HeldComm{}) {}

  TokenRoute& get() const {
    require(route != nullptr, "route is NULL; pass a route made by moecclTokenRouteCreate");
    requireLive(HandleKind::tokenRoute, route);
    return *route->route;
  }
  TokenRoute& getSet() const {
    TokenRoute& it = get();
    if (!it.isSet())
      throw Error(moecclInvalidUsage,
                  "the route has no routing yet; call moecclTokenRouteSet first");
    return it;
  }
  // For what latency mode has only when rows have come.
  TokenRoute& getCounted() const {
    TokenRoute& it = getSet();
    if (!it.isCounted())
      throw Error(moecclInvalidUsage,
                  "in latency mode the rows are known after moecclTokenRouteDispatch; call that "
                  "first");
    return it;
  }
  TokenRoute& getForGradients() const {
    if (get().shape().latency)
      throw Error(moecclInvalidUsage,
                  "a route in latency mode has no backward passes; make one with "
                  "moecclRouteThroughput");
    return getSet();
  }
  Communicator& communicator() const { return communicatorOf(comm); }

  moecclTokenRoute_t route;
  bool lives;
  HeldComm comm;
};

template <typename Body>
moecclResult_t onRoute(const char* function, moecclTokenRoute_t route, Body&& body) {
  const HeldRoute held(route);
  return boundary(function, lastErrorOf(held.comm), [&] { body(held); });
}

void requireDistinct(const RouteShape& shape, std::int64_t tokens, const std::int32_t* chosen) {
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int32_t* const its = chosen + token * shape.choices;
    for (int i = 1; i < shape.choices; ++i)
      if (its[i] >= 0 && std::find(its, its + i, its[i]) != its + i)
        invalid("topkIndices[" + std::to_string(token) + "][" + std::to_string(i) + "] is " +
                std::to_string(its[i]) +
                " again; in latency mode a token may have each expert once");
  }
}

// Arguments of a Set that are wrong whatever the choices are.
void checkTokens(const RouteShape& shape, std::int64_t tokens, const std::int32_t* chosen,
                 const float* weights) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / shape.choices;
  if (tokens < 0 || tokens > most || (shape.maxTokens > 0 && tokens > shape.maxTokens))
    invalid("tokens is " + std::to_string(tokens) + "; it must be 0 to " +
            std::to_string(shape.maxTokens > 0 ? std::min(shape.maxTokens, most) : most));
  if (!shape.weighted)
    require(
        weights == nullptr,
        "topkWeights is not NULL, but with moecclRouteWeightsCaller the library weighs nothing");
  if (tokens == 0) return;
  require(chosen != nullptr, "topkIndices is NULL while there are tokens");
  if (shape.weighted)
    require(weights != nullptr,
            "topkWeights is NULL; with moecclRouteWeightsLibrary each choice needs a weight");
}

void checkChoices(const RouteShape& shape, std::int64_t tokens, const std::int32_t* chosen) {
  for (std::int64_t i = 0; i < tokens * shape.choices; ++i)
    if (chosen[i] < -1 || chosen[i] >= shape.experts.count)
      invalid("topkIndices[" + std::to_string(i / shape.choices) + "][" +
              std::to_string(i % shape.choices) + "] is " + std::to_string(chosen[i]) +
              "; it must be an expert, 0 to " + std::to_string(shape.experts.count - 1) +
              ", or -1 for none");
  if (shape.latency) requireDistinct(shape, tokens, chosen);
}

std::size_t routeBytes(std::int64_t rows, std::size_t rowBytes) {
  return static_cast<std::size_t>(rows) * rowBytes;
}

}  // namespace
}  // namespace moeccl

using moeccl::HeldRoute;
using moeccl::onRoute;

moecclResult_t moecclTokenRouteCreate(moecclGrid_t grid, const moecclTokenRouteConfig_t* config,
                                      moecclTokenRoute_t* route) {
  const auto state = moeccl::holdWorld(grid);
  return moeccl::boundary("moecclTokenRouteCreate", moeccl::lastErrorOf(state), [&] {
    const moecclGrid& it = moeccl::gridOf(grid);
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    moeccl::CommunicatorOob oob(communicator);
    moeccl::RouteShape shape{};
    moeccl::agreeAfter(oob, [&] {
      moeccl::require(route != nullptr, "route is NULL; pass where to store the route");
      shape = moeccl::shapeOf(moeccl::readStruct(moeccl::kRouteConfig, config),
                              moeccl::asGrid(it.shape));
    });
    moeccl::requireSame(communicator, shape);
    auto made = std::unique_ptr<moecclTokenRoute>(new moecclTokenRoute{
        it.comms[moecclGroupWorld],
        moeccl::TokenRoute::make(communicator, shape,
                                 {state->model->links(), state->model->sharing()})});
    moeccl::addHandle(moeccl::HandleKind::tokenRoute, made.get());
    *route = made.release();
  });
}

moecclResult_t moecclTokenRouteCopy(moecclTokenRoute_t route, moecclTokenRoute_t* copy) {
  return onRoute("moecclTokenRouteCopy", route, [&](const HeldRoute& held) {
    const moeccl::TokenRoute& it = held.get();
    moeccl::require(copy != nullptr, "copy is NULL; pass where to store the route");
    auto made = std::unique_ptr<moecclTokenRoute>(new moecclTokenRoute{
        route->comm, moeccl::TokenRoute::make(held.communicator(), it.shape(), it.prices())});
    moeccl::addHandle(moeccl::HandleKind::tokenRoute, made.get());
    *copy = made.release();
  });
}

moecclResult_t moecclTokenRouteDestroy(moecclTokenRoute_t route) {
  if (route == nullptr) return moecclSuccess;
  const moeccl::KnownHandle known = moeccl::removeHandle(moeccl::HandleKind::tokenRoute, route);
  const moecclResult_t result = moeccl::boundary("moecclTokenRouteDestroy", nullptr, [&] {
    moeccl::requireLive(moeccl::HandleKind::tokenRoute, known.state);
  });
  if (result == moecclSuccess) delete route;
  return result;
}

moecclResult_t moecclTokenRouteSet(moecclTokenRoute_t route, int64_t tokens,
                                   const int32_t* topkIndices, const float* topkWeights,
                                   moecclStream_t stream) {
  return onRoute("moecclTokenRouteSet", route, [&](const HeldRoute& held) {
    moeccl::TokenRoute& it = held.get();
    moeccl::Communicator& communicator = held.communicator();
    moeccl::checkTokens(it.shape(), tokens, topkIndices, topkWeights);
    moeccl::requireStream(communicator, stream);
    if (it.isSetOnGpu()) return it.set(communicator, {}, tokens, topkIndices, topkWeights, stream);
    const auto choices = static_cast<std::size_t>(tokens * it.shape().choices);
    route->chosen.resize(choices);
    route->weights.resize(it.shape().weighted ? choices : 0);
    const moeccl::Communicator::Reading readings[] = {
        {route->chosen.data(), topkIndices, choices * sizeof(std::int32_t)},
        {route->weights.data(), topkWeights, route->weights.size() * sizeof(float)}};
    communicator.read(readings, stream);
    moeccl::checkChoices(it.shape(), tokens, route->chosen.data());
    const auto counts =
        it.countBytes() == 0
            ? moeccl::AlgorithmChoice{}
            : moeccl::choose(*held.comm, moeccl::Collective::allToAll, it.countBytes());
    it.set(communicator, counts, tokens, route->chosen.data(),
           it.shape().weighted ? route->weights.data() : nullptr, stream);
  });
}

moecclResult_t moecclTokenRouteGetShape(moecclTokenRoute_t route, int* firstExpert,
                                        int* localExperts, size_t* rowBytes) {
  return onRoute("moecclTokenRouteGetShape", route, [&](const HeldRoute& held) {
    const moeccl::TokenRoute& it = held.get();
    if (firstExpert != nullptr) *firstExpert = it.firstExpert();
    if (localExperts != nullptr) *localExperts = it.localExperts();
    if (rowBytes != nullptr) *rowBytes = it.shape().rowBytes();
  });
}

moecclResult_t moecclTokenRouteGetCounts(moecclTokenRoute_t route, int64_t* rows,
                                         int64_t* expertBegins) {
  return onRoute("moecclTokenRouteGetCounts", route, [&](const HeldRoute& held) {
    const std::vector<std::int64_t>& begins = held.getCounted().expertBegins(held.communicator());
    if (rows != nullptr) *rows = begins.back();
    if (expertBegins != nullptr) std::ranges::copy(begins, expertBegins);
  });
}

moecclResult_t moecclTokenRouteGetRankCounts(moecclTokenRoute_t route, int64_t* counts) {
  return onRoute("moecclTokenRouteGetRankCounts", route, [&](const HeldRoute& held) {
    moeccl::Communicator& communicator = held.communicator();
    const moeccl::TokenRoute& it = held.getCounted();
    moeccl::require(counts != nullptr || it.localExperts() == 0,
                    "counts is NULL; it must have room for [localExperts][P]");
    if (counts != nullptr) it.rankCounts(communicator, counts);
  });
}

moecclResult_t moecclTokenRouteGetDeviceCounts(moecclTokenRoute_t route,
                                               const int64_t** expertBegins) {
  return onRoute("moecclTokenRouteGetDeviceCounts", route, [&](const HeldRoute& held) {
    const moeccl::TokenRoute& it = held.get();
    moeccl::require(expertBegins != nullptr,
                    "expertBegins is NULL; pass where to store the address");
    if (it.deviceBegins() == nullptr)
      throw moeccl::Error(moecclInvalidUsage,
                          "the route is not in latency mode on GPUs; moecclTokenRouteGetCounts has "
                          "the counts");
    *expertBegins = it.deviceBegins();
  });
}

moecclResult_t moecclTokenRouteGetMostRows(moecclTokenRoute_t route, int64_t* rows) {
  return onRoute("moecclTokenRouteGetMostRows", route, [&](const HeldRoute& held) {
    const moeccl::TokenRoute& it = held.get();
    moeccl::require(rows != nullptr, "rows is NULL; pass where to store the number");
    if (!it.shape().latency)
      throw moeccl::Error(moecclInvalidUsage,
                          "the route is not in latency mode; moecclTokenRouteGetCounts says how "
                          "many rows come");
    *rows = it.roomForRows();
  });
}

moecclResult_t moecclTokenRouteGetAlgorithm(moecclTokenRoute_t route, const char** algorithm) {
  return onRoute("moecclTokenRouteGetAlgorithm", route, [&](const HeldRoute& held) {
    moeccl::require(algorithm != nullptr, "algorithm is NULL; pass where to store the name");
    // A literal of the registry's.
    *algorithm = held.getSet().algorithm().name.data();
  });
}

moecclResult_t moecclTokenRouteDispatch(moecclTokenRoute_t route, const void* tokens, void* rows,
                                        moecclStream_t stream) {
  return onRoute("moecclTokenRouteDispatch", route, [&](const HeldRoute& held) {
    moeccl::TokenRoute& it = held.getSet();
    const size_t row = it.shape().rowBytes();
    moeccl::requireRoom({{"tokens", tokens, moeccl::routeBytes(it.tokens(), row)},
                         {"rows", rows, moeccl::routeBytes(it.roomForRows(), row)}});
    moeccl::requireStream(held.communicator(), stream);
    it.dispatch(held.communicator(), tokens, rows, stream);
  });
}

namespace {

moecclResult_t combine(const char* function, moecclTokenRoute_t route, const char* inputName,
                       const void* input, const char* outputName, void* output, bool forward,
                       moecclStream_t stream) {
  return onRoute(function, route, [&](const HeldRoute& held) {
    moeccl::TokenRoute& it = forward ? held.getCounted() : held.getForGradients();
    const size_t row = it.shape().combineRowBytes();
    const moeccl::NamedBuffer from{inputName, input, moeccl::routeBytes(it.roomForRows(), row)},
        to{outputName, output, moeccl::routeBytes(it.tokens(), row)};
    moeccl::requireRoom({from, to});
    if (held.communicator().device())
      for (const moeccl::NamedBuffer& buffer : {from, to})
        moeccl::requireAligned(buffer.name, buffer.at, moeccl::sizeOf(it.shape().combineDatatype));
    moeccl::requireStream(held.communicator(), stream);
    it.combine(held.communicator(), input, output, forward, stream);
  });
}

}  // namespace

moecclResult_t moecclTokenRouteCombine(moecclTokenRoute_t route, const void* rows, void* output,
                                       moecclStream_t stream) {
  return combine("moecclTokenRouteCombine", route, "rows", rows, "output", output, true, stream);
}

moecclResult_t moecclTokenRouteDispatchBackward(moecclTokenRoute_t route, const void* rowGradients,
                                                void* tokenGradients, moecclStream_t stream) {
  return combine("moecclTokenRouteDispatchBackward", route, "rowGradients", rowGradients,
                 "tokenGradients", tokenGradients, false, stream);
}

moecclResult_t moecclTokenRouteCombineBackward(moecclTokenRoute_t route,
                                               const void* outputGradients, const void* rows,
                                               void* rowGradients, float* weightGradients,
                                               moecclStream_t stream) {
  return onRoute("moecclTokenRouteCombineBackward", route, [&](const HeldRoute& held) {
    moeccl::TokenRoute& it = held.getForGradients();
    const size_t row = it.shape().combineRowBytes();
    const bool weighted = it.shape().weighted;
    if (!weighted)
      moeccl::require(rows == nullptr && weightGradients == nullptr,
                      "rows and weightGradients must be NULL with moecclRouteWeightsCaller: the "
                      "library has no weights");
    const moeccl::NamedBuffer from{"outputGradients", outputGradients,
                                   moeccl::routeBytes(it.tokens(), row)},
        kept{"rows", rows, weighted ? moeccl::routeBytes(it.roomForRows(), row) : 0},
        to{"rowGradients", rowGradients, moeccl::routeBytes(it.roomForRows(), row)},
        ofWeights{
            "weightGradients", weightGradients,
            weighted ? moeccl::routeBytes(it.tokens() * it.shape().choices, sizeof(float)) : 0};
    moeccl::requireRoom({from, kept, to, ofWeights});
    if (held.communicator().device()) {
      for (const moeccl::NamedBuffer& buffer : {from, kept, to})
        moeccl::requireAligned(buffer.name, buffer.at, moeccl::sizeOf(it.shape().combineDatatype));
      moeccl::requireAligned(ofWeights.name, ofWeights.at, sizeof(float));
    }
    moeccl::requireStream(held.communicator(), stream);
    it.combineBackward(held.communicator(), outputGradients, rows, rowGradients, weightGradients,
                       stream);
  });
}

moecclResult_t moecclTokenRouteGetLoads(moecclTokenRoute_t route, int64_t* choices, int64_t* rows,
                                        int reset) {
  return onRoute("moecclTokenRouteGetLoads", route, [&](const HeldRoute& held) {
    moeccl::TokenRoute& it = held.get();
    moeccl::Communicator& communicator = held.communicator();
    const std::vector<std::int64_t> own = it.loads(communicator);
    const std::size_t experts = own.size() - 1;
    std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(communicator.ranks()));
    communicator.allgather(own.data(), all.data(), own.size() * sizeof(std::int64_t));
    if (choices != nullptr) std::fill_n(choices, experts, 0);
    for (auto theirs = all.begin(); theirs != all.end(); ++theirs) {
      for (std::size_t expert = 0; expert < experts; ++expert, ++theirs)
        if (choices != nullptr) choices[expert] += *theirs;
      if (rows != nullptr) *rows++ = *theirs;
    }
    if (reset != 0) it.forgetLoads(communicator);
  });
}

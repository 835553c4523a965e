// Begins a pass in throughput mode: ranks tell each other their counts, choose an algorithm, and
// send lists of rows by way of the relays. Calls run the plans that follow from these.
#include "src/route/throughput_pass.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/quantise.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/comm/agreement.h"
#include "src/route/row_room.h"
#include "src/route/tells.h"

namespace moeccl {
namespace {

using routes::Here;
using routes::Home;
using routes::IndexedRows;
using routes::Knowledge;
using routes::Relay;
using routes::RouteAlgorithm;
using routes::RowList;

// A rank first tells each other rank its counts of rows, and how many entries of rows it will send
// to that rank, by candidate.
constexpr std::size_t kCounts = sizeof(RouteCounts) / sizeof(std::int32_t);
// Instead of a number of tokens: the rank's routing is wrong.
constexpr std::int32_t kWrong = -1;

std::shared_ptr<const PlanName> nameOf(const char* what, const RouteAlgorithm& algorithm) {
  return std::make_shared<PlanName>(std::string(what) + " (" + std::string(algorithm.name) + ")");
}

// The name of a Begin, which differs on ranks that begin passes of different routes. It is short
// because errors name two.
std::string beginNameOf(const RouteShape& shape) {
  static constexpr const char* kWeights[] = {", weighted, ", ", weights with rows, ", ", "};
  return "a route's Begin of " + std::to_string(shape.choices) + " of " +
         std::to_string(shape.experts.count) + " experts, " + std::to_string(shape.hidden) + " x " +
         std::string(typeName(shape.tokenDatatype)) + " to " +
         std::string(typeName(shape.datatype)) + kWeights[shape.weights] +
         (shape.algorithm == nullptr ? "auto" : std::string(shape.algorithm->name)) +
         (shape.rowsByToken ? ", rows by token" : "") +
         (shape.maxRows > 0 ? ", at most " + std::to_string(shape.maxRows) + " rows" : "") +
         (shape.alignment > 1 ? ", aligned to " + std::to_string(shape.alignment) : "") +
         (shape.quantises() ? ", sent as " + std::string(typeName(shape.wire)) : "");
}

}  // namespace

struct ThroughputPass::State {
  State(const RouteCandidate& candidate, Home tokens)
      : chosen(candidate), home(std::move(tokens)) {}

  const RouteCandidate& chosen;
  Home home;
  std::optional<Relay> relay;
  std::optional<Here> here;
  // Tokens without a choice, and choices of none.
  std::vector<std::int32_t> dropped, notChosen;

  Knowledge known(const Topology& topology, int rank) const {
    return {topology, chosen.way, rank, home, *relay, *here};
  }
};

// Made when they are first needed. Calls share them.
struct ThroughputPass::Plans {
  std::shared_ptr<CachedPlan> dispatch, combine, back;
  std::vector<float> weights;  // that combine's scratch has
  // The plans of the routing before, for their memory.
  std::shared_ptr<CachedPlan> oldDispatch, oldCombine, oldBack;
};

ThroughputPass::ThroughputPass(Communicator& communicator, const RouteShape& shape,
                               const RoutePrices& prices)
    : RoutePass(shape, communicator.rank(), prices),
      topology_(communicator.topology()),
      beginName_(std::make_shared<PlanName>(beginNameOf(shape))),
      roomName_(std::make_shared<PlanName>(beginNameOf(shape) + ": room for rows")),
      candidates_(candidatesOf(shape, topology_, rank_)),
      plans_(std::make_shared<Plans>()) {}

// All ranks tell all others, so that they choose alike.
const RouteCandidate& ThroughputPass::choose(Communicator& communicator, const Routing& routing,
                                             const Home& home,
                                             std::vector<std::int32_t>& entriesFrom, int* chunks) {
  const auto ranks = static_cast<std::size_t>(topology_.ranks());
  const std::size_t numbers = kCounts + candidates_.size();
  std::vector<std::int32_t> tells(ranks * numbers), told(ranks * numbers);
  RouteCounts own = countsOf(home, topology_.nodes(), topology_.nodeOf(rank_));
  if (routing.wrong) own.tokens = kWrong;
  for (std::size_t to = 0; to < ranks; ++to) {
    std::int32_t* const block = &tells[to * numbers];
    std::memcpy(block, &own, sizeof own);
    const int rank = static_cast<int>(to), node = topology_.nodeOf(rank);
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const RouteCandidate& candidate = candidates_[i];
      if (!candidate.relays)
        block[kCounts + i] = static_cast<std::int32_t>(home.choicesFor(rank).size());
      else if (rank != rank_ && relayOf(topology_, candidate.way, rank_, node) == rank)
        block[kCounts + i] = static_cast<std::int32_t>(home.of(node).choices.size());
    }
  }
  tellEachOther(communicator, beginName_, tells.data(), told.data(),
                numbers * sizeof(std::int32_t));

  std::vector<RouteCounts> all(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::memcpy(&all[rank], &told[rank * numbers], sizeof(RouteCounts));
  if (std::ranges::find(all, kWrong, &RouteCounts::tokens) != all.end()) {
    CommunicatorOob oob(communicator);
    agree(oob, routing.wrong);  // throws
  }
  const RouteCandidate& best = cheapest(candidates_, prices_, topology_, shape_, all);
  *chunks =
      routeChunks(topology_, {best.relays, best.way.rowPerChoice}, all, shape_.sentRowBytes());
  const auto index = static_cast<std::size_t>(&best - candidates_.data());
  entriesFrom.resize(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    entriesFrom[rank] = told[rank * numbers + kCounts + index];
  return best;
}

// Ranks of experts say how many choices they have room for. Shards of an expert get the same
// choices, so they say the same.
const std::int32_t* ThroughputPass::admit(Communicator& communicator, const Routing& routing,
                                          std::int64_t tokens) {
  if (shape_.maxRows == 0) return routing.experts;
  admitted_.assign(routing.experts, routing.experts + tokens * shape_.choices);
  dropped_ = 0;
  const auto ranks = static_cast<std::size_t>(topology_.ranks());
  // The first positions have the most experts.
  const auto most = static_cast<std::size_t>(shape_.experts.begin(1));
  std::vector<std::int32_t> tells(ranks * most), told(ranks * most);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(shape_.experts.count));
  for (const std::int32_t expert : admitted_)
    if (expert >= 0) ++chosen[static_cast<std::size_t>(expert)];
  const auto firstOf = [&](std::size_t rank) { return shape_.firstExpert(static_cast<int>(rank)); };
  const auto countOf = [&](std::size_t rank) {
    return static_cast<std::size_t>(shape_.localExperts(static_cast<int>(rank)));
  };
  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::copy_n(chosen.begin() + firstOf(rank), countOf(rank), &tells[rank * most]);
  const auto tell = [&] {
    tellEachOther(communicator, roomName_, tells.data(), told.data(), most * sizeof(std::int32_t));
  };
  tell();

  const std::size_t own = countOf(static_cast<std::size_t>(rank_));
  std::vector<std::int64_t> wants(own, 0), ofExpert(ranks);
  for (std::size_t expert = 0; expert < own; ++expert)
    for (std::size_t rank = 0; rank < ranks; ++rank) wants[expert] += told[rank * most + expert];
  const std::vector<std::int64_t> shares = sharesOf(wants, shape_.maxRows, shape_.alignment);
  for (std::size_t expert = 0; expert < own; ++expert) {
    for (std::size_t rank = 0; rank < ranks; ++rank) ofExpert[rank] = told[rank * most + expert];
    const std::vector<std::int64_t> gives = sharesOf(ofExpert, shares[expert], 1);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      tells[rank * most + expert] = static_cast<std::int32_t>(gives[rank]);
  }
  tell();

  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::copy_n(&told[rank * most], countOf(rank), chosen.begin() + firstOf(rank));
  for (std::int32_t& expert : admitted_)
    if (expert >= 0 && --chosen[static_cast<std::size_t>(expert)] < 0) {
      expert = -1;
      ++dropped_;
    }
  return admitted_.data();
}

std::vector<std::byte> ThroughputPass::packed(const RowList& list) const {
  std::vector<std::byte> bytes(
      routes::packedBytes(list.chunks, list.sources, list.entries(), shape_.hasWeights()));
  routes::pack(list, shape_.hasWeights(), bytes.data());
  return bytes;
}

// Room for a list of so many sources that comes from a rank; none where that is this rank.
std::vector<std::byte> ThroughputPass::roomFor(int from, int chunks, int sources,
                                               const std::vector<std::int32_t>& entriesFrom) const {
  if (from == rank_) return {};
  return std::vector<std::byte>(routes::packedBytes(
      chunks, sources, entriesFrom[static_cast<std::size_t>(from)], shape_.hasWeights()));
}

RowList ThroughputPass::read(const RankBytes& part, int chunks, int sources,
                             const std::vector<std::int32_t>& entriesFrom) const {
  RowList list;
  routes::unpack(part.bytes, chunks, sources, entriesFrom[static_cast<std::size_t>(part.rank)],
                 shape_.hasWeights(), shape_.experts.count, &list);
  return list;
}

// The lists of the rank's own rows go to the relays.
std::vector<RowList> ThroughputPass::tellRelays(
    Communicator& communicator, const State& state, int chunks,
    const std::vector<std::int32_t>& entriesFrom) const {
  const RouteCandidate& candidate = state.chosen;
  const std::vector<int>& sources =
      candidate.paths.relayed[static_cast<std::size_t>(topology_.nodeOf(rank_))];
  if (!candidate.relays) return std::vector<RowList>(sources.size());
  std::vector<RankBytes> sends, receives;
  for (int node = 0; node < topology_.nodes(); ++node)
    if (const int relay = relayOf(topology_, candidate.way, rank_, node); relay != rank_)
      sends.push_back({relay, packed(state.home.of(node).rows.list)});
  for (const int source : sources)
    receives.push_back({source, roomFor(source, chunks, 1, entriesFrom)});
  communicator.exchange(nameOf("route: rows to relays", *candidate.algorithm), sends, receives);
  std::vector<RowList> lists;
  for (const RankBytes& part : receives)
    lists.push_back(part.rank == rank_ ? RowList{} : read(part, chunks, 1, entriesFrom));
  return lists;
}

// How many entries come from each relay, where only that knows.
void ThroughputPass::countFromRelays(Communicator& communicator, const State& state,
                                     std::vector<std::int32_t>& entriesFrom) const {
  std::vector<RankBytes> sends, receives;
  for (const Relay::Destination& to : state.relay->destinations) {
    const std::int32_t entries = to.rows.list.entries();
    RankBytes told{to.rank, std::vector<std::byte>(sizeof entries)};
    std::memcpy(told.bytes.data(), &entries, sizeof entries);
    sends.push_back(std::move(told));
  }
  for (const auto& [relay, sources] : state.chosen.paths.relays)
    receives.push_back({relay, std::vector<std::byte>(sizeof(std::int32_t))});
  communicator.exchange(nameOf("route: counts in nodes", *state.chosen.algorithm), sends, receives);
  for (const RankBytes& part : receives)
    if (part.rank != rank_)
      std::memcpy(&entriesFrom[static_cast<std::size_t>(part.rank)], part.bytes.data(),
                  sizeof(std::int32_t));
}

// The lists of what the rank's own experts get come from the relays.
std::vector<RowList> ThroughputPass::hearRelays(
    Communicator& communicator, const State& state, int chunks,
    const std::vector<std::int32_t>& entriesFrom) const {
  const routes::Paths& paths = state.chosen.paths;
  std::vector<RankBytes> sends, receives;
  for (const Relay::Destination& to : state.relay->destinations)
    if (to.rank != rank_) sends.push_back({to.rank, packed(to.rows.list)});
  for (const auto& [relay, sources] : paths.relays)
    receives.push_back(
        {relay, roomFor(relay, chunks, static_cast<int>(sources.size()), entriesFrom)});
  communicator.exchange(nameOf("route: rows", *state.chosen.algorithm), sends, receives);
  std::vector<RowList> lists;
  for (std::size_t i = 0; i < receives.size(); ++i)
    lists.push_back(receives[i].rank == rank_
                        ? state.relay->to(rank_)->rows.list
                        : read(receives[i], chunks, static_cast<int>(paths.relays[i].second.size()),
                               entriesFrom));
  return lists;
}

void ThroughputPass::begin(Communicator& communicator, const Routing& routing, void*) {
  const std::int64_t tokens = routing.wrong ? 0 : routing.tokens;
  const std::int32_t* const chosen = admit(communicator, routing, tokens);
  Home home(topology_, shape_.experts, chosen, routing.floats(), static_cast<std::int32_t>(tokens),
            shape_.choices);
  std::vector<std::int32_t> entriesFrom(static_cast<std::size_t>(topology_.ranks()), 0);
  int chunks = 1;
  const RouteCandidate& candidate = choose(communicator, routing, home, entriesFrom, &chunks);
  home.cut(chunks);
  const auto state = std::make_shared<State>(candidate, std::move(home));
  for (std::int32_t token = 0; token < tokens; ++token)
    if (state->home.nodesOf(token) == 0) state->dropped.push_back(token);
  for (std::int32_t choice = 0; choice < tokens * shape_.choices; ++choice)
    if (chosen[choice] < 0) state->notChosen.push_back(choice);
  state->relay.emplace(topology_, shape_.experts, candidate.way, candidate.paths, rank_,
                       state->home, tellRelays(communicator, *state, chunks, entriesFrom));
  if (candidate.relays) countFromRelays(communicator, *state, entriesFrom);
  state->here.emplace(shape_.experts, candidate.paths, rank_, topology_.ranks(),
                      hearRelays(communicator, *state, chunks, entriesFrom), shape_.alignment);

  loads_.add(tokens * shape_.choices, routing.experts);
  loads_.addRows(state->here->rows());
  auto plans = std::make_shared<Plans>();
  const auto newest = [](auto& made, auto& old) { return made ? std::move(made) : std::move(old); };
  plans->oldDispatch = newest(plans_->dispatch, plans_->oldDispatch);
  plans->oldCombine = newest(plans_->combine, plans_->oldCombine);
  plans->oldBack = newest(plans_->back, plans_->oldBack);
  state_ = state;
  plans_ = std::move(plans);
  log(LogLevel::trace, {rank_, topology_.ranks()},
      "route: %lld tokens, %lld rows come, by %s in %d chunks", static_cast<long long>(tokens),
      static_cast<long long>(roomForRows()), std::string(candidate.algorithm->name).c_str(),
      chunks);
}

std::int64_t ThroughputPass::roomForRows() const { return state_->here->rows(); }

const std::vector<std::int64_t>& ThroughputPass::expertBegins(Communicator&) {
  return state_->here->expertBegins;
}

void ThroughputPass::rankCounts(Communicator&, std::int64_t* counts) const {
  state_->here->rankCounts(topology_.ranks(), counts);
}

const float* ThroughputPass::rowWeights() const {
  return shape_.weights == moecclRouteWeightsRows ? state_->here->weights.data() : nullptr;
}

std::int64_t ThroughputPass::tokens() const { return state_->home.tokens(); }

const RouteAlgorithm& ThroughputPass::algorithm() const { return *state_->chosen.algorithm; }

RowsCall ThroughputPass::dispatching(const void* tokens, void* rows, std::size_t rowBytes,
                                     const std::shared_ptr<const PlanName>& inside) {
  if (!plans_->dispatch)
    plans_->dispatch =
        ownPlan(nameOf("token dispatch", algorithm()),
                dispatchPlan(state_->known(topology_, rank_)), plans_->oldDispatch.get());
  RowsCall call{{tokens, rows, rowBytes}};
  call.plan = plans_->dispatch;
  call.inside = inside;
  call.zeros = state_->here->padding;
  call.keep = state_;
  return call;
}

void ThroughputPass::moveRows(Communicator& communicator, const void* tokens, void* rows,
                              std::size_t rowBytes, const std::shared_ptr<const PlanName>& inside,
                              void* stream) {
  communicator.launch({dispatching(tokens, rows, rowBytes, inside)}, stream);
}

void ThroughputPass::sendRows(Communicator& communicator, const void* tokens, void* rows,
                              moecclDataType_t datatype,
                              const std::shared_ptr<const PlanName>& inside, void* stream) {
  const auto elements = static_cast<std::size_t>(shape_.hidden);
  if (!shape_.quantises())
    return moveRows(communicator, tokens, rows,
                    datatype == shape_.tokenDatatype ? shape_.rowBytes() : shape_.combineRowBytes(),
                    inside, stream);
  struct Kept {
    std::shared_ptr<const State> state;
    std::unique_ptr<std::byte[]> tokens, rows;
  };
  const std::size_t rowBytes = shape_.sentRowBytes(),
                    sent = static_cast<std::size_t>(this->tokens()),
                    come = static_cast<std::size_t>(roomForRows());
  const auto kept = std::make_shared<Kept>(
      Kept{state_, std::make_unique_for_overwrite<std::byte[]>(sent * rowBytes),
           std::make_unique_for_overwrite<std::byte[]>(come * rowBytes)});
  RowsCall call = dispatching(kept->tokens.get(), kept->rows.get(), rowBytes, inside);
  call.keep = kept;
  const moecclDataType_t wire = shape_.wire;
  call.prepare = [=, to = kept->tokens.get()] {
    quantise(wire, datatype, static_cast<const std::byte*>(tokens), sent, elements, to);
  };
  call.finish = [=, from = kept->rows.get()] {
    dequantise(wire, datatype, from, come, elements, static_cast<std::byte*>(rows));
  };
  communicator.launch({std::move(call)}, stream);
}

void ThroughputPass::dispatch(Communicator& communicator, const void* tokens, void* rows,
                              void* stream) {
  sendRows(communicator, tokens, rows, shape_.tokenDatatype, nullptr, stream);
}

RowsCall ThroughputPass::combining(const void* rows, void* output, std::size_t rowBytes,
                                   moecclDataType_t datatype) {
  if (!plans_->combine) {
    routes::CombinePlan made = combinePlan(state_->known(topology_, rank_));
    plans_->combine = ownPlan(nameOf("token combine", algorithm()), std::move(made.plan),
                              plans_->oldCombine.get());
    plans_->weights = std::move(made.weights);
  }
  RowsCall call{{rows, output, rowBytes, datatype}};
  call.plan = plans_->combine;
  call.zeros = state_->dropped;
  struct Kept {
    std::shared_ptr<const State> state;
    std::shared_ptr<const Plans> plans;
  };
  call.keep = std::make_shared<Kept>(Kept{state_, plans_});
  return call;
}

void ThroughputPass::combine(Communicator& communicator, const void* rows, void* output,
                             bool forward, void* stream) {
  static const auto backward = std::make_shared<PlanName>("moecclPassDispatchBackward");
  RowsCall call = combining(rows, output, shape_.combineRowBytes(), shape_.datatype);
  if (!forward) call.inside = backward;
  if (forward && shape_.weighs()) {
    call.inputWeights = state_->here->weights;
    call.scratchWeights = plans_->weights;
  }
  communicator.launch({std::move(call)}, stream);
}

void ThroughputPass::addUp(Communicator& communicator, const float* rows, float* tokens,
                           std::int64_t elements, std::function<void()> prepare, void* stream) {
  static const auto backward = std::make_shared<PlanName>("moecclPassDispatchBackward, weights");
  RowsCall call =
      combining(rows, tokens, static_cast<std::size_t>(elements) * sizeof(float), moecclFloat32);
  call.inside = backward;
  call.prepare = std::move(prepare);
  communicator.launch({std::move(call)}, stream);
}

RowsCall ThroughputPass::returning(const float* ofRows, void* ofChoices) {
  if (!plans_->back)
    plans_->back = ownPlan(nameOf("route: gradients of weights", algorithm()),
                           returnPlan(state_->known(topology_, rank_)), plans_->oldBack.get());
  RowsCall call{{ofRows, ofChoices, sizeof(float), moecclFloat32}};
  call.plan = plans_->back;
  call.zeros = state_->notChosen;
  return call;
}

void ThroughputPass::returnWeights(Communicator& communicator, const float* rowWeightGradients,
                                   float* weightGradients, void* stream) {
  RowsCall call = returning(rowWeightGradients, weightGradients);
  call.keep = state_;
  communicator.launch({std::move(call)}, stream);
}

void ThroughputPass::combineBackward(Communicator& communicator, const void* outputGradients,
                                     const void* rows, void* rowGradients, void* weightGradients,
                                     void* stream) {
  static const auto backward = std::make_shared<PlanName>("moecclPassCombineBackward");
  sendRows(communicator, outputGradients, rowGradients, shape_.datatype, backward, stream);
  if (!shape_.weighs()) return;
  // On GPUs the gradients of weights lie in memory of the communicator's.
  struct Kept {
    std::shared_ptr<const State> state;
    std::vector<float> ofWeights;
  };
  const auto kept = std::make_shared<Kept>(Kept{state_, {}});
  if (!communicator.device()) kept->ofWeights.resize(static_cast<std::size_t>(roomForRows()));
  RowsCall call = returning(kept->ofWeights.data(), weightGradients);
  call.keep = kept;
  call.weighing = {shape_.datatype,
                   static_cast<std::byte*>(rowGradients),
                   static_cast<const std::byte*>(rows),
                   shape_.combineRowBytes(),
                   state_->here->weights.data(),
                   roomForRows()};
  communicator.launch({std::move(call)}, stream);
}

}  // namespace moeccl

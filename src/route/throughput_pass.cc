// Begins a pass in throughput mode: ranks tell each other their counts, choose an algorithm, and
// send lists of rows. Calls run the plans that follow from these.
#include "src/route/throughput_pass.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/quantise.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/comm/agreement.h"
#include "src/route/relay_lists.h"
#include "src/route/row_room.h"
#include "src/route/tells.h"

namespace moeccl {
namespace {

using routes::Here;
using routes::Home;
using routes::Knowledge;
using routes::Relay;

// A rank first tells each other rank its counts of rows, and how many entries of rows it will send
// to that rank, by candidate.
constexpr std::size_t kCounts = sizeof(RouteCounts) / sizeof(std::int32_t);
// Instead of a number of tokens: the rank's routing is wrong.
constexpr std::int32_t kWrong = -1;

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
ThroughputPass::Chosen ThroughputPass::choose(Communicator& communicator, const Routing& routing,
                                              const Home& home) const {
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
  const auto index = static_cast<std::size_t>(&best - candidates_.data());
  std::vector<std::int32_t> entriesFrom;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    entriesFrom.push_back(told[rank * numbers + kCounts + index]);
  return {best,
          routeChunks(topology_, {best.relays, best.way.rowPerChoice}, all, shape_.sentRowBytes()),
          std::move(entriesFrom)};
}

void ThroughputPass::begin(Communicator& communicator, const Routing& routing, void*) {
  const std::int64_t tokens = routing.wrong ? 0 : routing.tokens;
  const std::int32_t* chosen = routing.experts;
  if (shape_.maxRows > 0) {
    admitted_.assign(chosen, chosen + tokens * shape_.choices);
    dropped_ = admit(communicator, shape_, roomName_, admitted_);
    chosen = admitted_.data();
  }
  Home home(topology_, shape_.experts, chosen, routing.floats(), static_cast<std::int32_t>(tokens),
            shape_.choices);
  Chosen how = choose(communicator, routing, home);
  home.cut(how.chunks);
  const auto state = std::make_shared<State>(how.candidate, std::move(home));
  for (std::int32_t token = 0; token < tokens; ++token)
    if (state->home.nodesOf(token) == 0) state->dropped.push_back(token);
  for (std::int32_t choice = 0; choice < tokens * shape_.choices; ++choice)
    if (chosen[choice] < 0) state->notChosen.push_back(choice);
  RelayLists lists(communicator, shape_, how.candidate, how.chunks, std::move(how.entriesFrom));
  state->relay.emplace(topology_, shape_.experts, how.candidate.way, how.candidate.paths, rank_,
                       state->home, lists.toRelays(state->home));
  state->here.emplace(shape_.experts, how.candidate.paths, rank_, topology_.ranks(),
                      lists.fromRelays(*state->relay), shape_.alignment);

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
      static_cast<long long>(roomForRows()), algorithmName(), how.chunks);
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

const char* ThroughputPass::algorithmName() const { return state_->chosen.algorithm->name.data(); }

RowsCall ThroughputPass::dispatching(const void* tokens, void* rows, std::size_t rowBytes,
                                     const std::shared_ptr<const PlanName>& inside) {
  if (!plans_->dispatch)
    plans_->dispatch =
        ownPlan(state_->chosen.callName("token dispatch"),
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
    plans_->combine = ownPlan(state_->chosen.callName("token combine"), std::move(made.plan),
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
    plans_->back = ownPlan(state_->chosen.callName("route: gradients of weights"),
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

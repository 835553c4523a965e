#include "src/route/latency_route.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/weigh.h"
#include "src/route/route_choice.h"

namespace moeccl {
namespace {

using routes::Here;
using routes::Home;
using routes::IndexedRows;
using routes::Relay;
using routes::RowList;

// Of the rows in a letter.
constexpr std::size_t kAlignment = 16;
// At most what the arena takes of each message besides its bytes.
constexpr std::size_t kMargin = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t roomFor(std::int64_t rows, std::size_t bytes) {
  return static_cast<std::size_t>(rows) * bytes;
}

void copyRow(std::byte*& to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  to += bytes;
}

template <typename Items>
std::vector<std::size_t> byRank(const Items& items, int ranks) {
  std::vector<std::size_t> index(static_cast<std::size_t>(ranks), 0);
  for (std::size_t i = 0; i < items.size(); ++i) index[static_cast<std::size_t>(items[i].rank)] = i;
  return index;
}

std::vector<int> expertsOn(const Topology& topology, const routes::Experts& experts) {
  std::vector<int> counts(static_cast<std::size_t>(topology.nodes()), 0);
  const routes::Holders holders(topology, experts.grid);
  for (int position = 0; position < experts.grid.ep; ++position)
    for (const int node : holders.nodesOf(position))
      counts[static_cast<std::size_t>(node)] +=
          experts.begin(position + 1) - experts.begin(position);
  return counts;
}

// Ready to run without another allocation.
std::shared_ptr<CachedPlan> prepared(const char* what, const RouteShape& shape,
                                     const routes::RouteAlgorithm& algorithm, Plan plan,
                                     std::size_t arena) {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  auto name = std::make_shared<PlanName>(std::string(what) + " (" + std::string(algorithm.name) +
                                         ", " + number(shape.choices) + " of " +
                                         number(shape.experts.count) + " experts, at most " +
                                         number(shape.maxTokens) + " tokens of a rank)");
  std::shared_ptr<CachedPlan> made = ownPlan(std::move(name), std::move(plan), nullptr);
  RunSlot& slot = made->take();
  slot.run.reserve(arena);
  made->giveBack(slot);
  return made;
}

}  // namespace

std::size_t RouteShape::rowBytes() const {
  const auto elements = static_cast<std::size_t>(hidden);
  const std::size_t bytes = elements * sizeOf(datatype);
  return sizeOf(datatype) > 1 ? bytes : quantisedBytes(elements);
}

std::size_t RouteShape::combineRowBytes() const {
  return static_cast<std::size_t>(hidden) * sizeOf(combineDatatype);
}

LatencyRoute::LatencyRoute(Communicator& communicator, const RouteShape& shape,
                           const RoutePrices& prices)
    : TokenRoute(shape, communicator.rank(), prices),
      topology_(communicator.topology()),
      algorithm_(algorithmOfLatency(shape, topology_, rank_, prices)),
      way_(algorithm_.way()),
      paths_(routes::pathsOf(topology_, way_, rank_)),
      expertsOn_(expertsOn(topology_, shape.experts)),
      home_(topology_, shape.experts, shape.choices, static_cast<std::int32_t>(shape.maxTokens)),
      relay_(topology_, shape.experts, way_, paths_, rank_,
             static_cast<std::int32_t>(shape.maxTokens), shape.choices),
      here_(shape.experts, paths_, rank_, topology_.ranks(),
            static_cast<std::int32_t>(shape.maxTokens), shape.choices),
      dispatch_(*this),
      combine_(*this),
      loads_(shape.experts.count) {
  const int ranks = topology_.ranks(), own = topology_.nodeOf(rank_);
  sourceOfRank_.resize(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < relay_.sources.size(); ++i)
    if (relay_.sources[i].node == own)
      sourceOfRank_[static_cast<std::size_t>(relay_.sources[i].rank)] = i;
  fromOfRank_ = byRank(here_.from, ranks);
  destinationOfRank_ = byRank(relay_.destinations, ranks);
  dispatch_.reserve();
  combine_.reserve();
  dispatchPlan_ = prepared("token dispatch", shape, algorithm_,
                           routes::latencyDispatchPlan(topology_, way_, rank_), dispatchArena());
  combinePlan_ = prepared("token combine", shape, algorithm_,
                          routes::latencyCombinePlan(topology_, way_, rank_), combineArena());
}

std::int64_t LatencyRoute::mostEntriesOf(int holder) const {
  const routes::Experts& experts = shape_.experts;
  const int position = experts.grid.positionOf(holder);
  return shape_.maxTokens *
         std::min(shape_.choices, experts.begin(position + 1) - experts.begin(position));
}

std::int64_t LatencyRoute::mostEntriesOn(int node) const {
  return shape_.maxTokens * std::min(shape_.choices, expertsOn_[static_cast<std::size_t>(node)]);
}

std::int64_t LatencyRoute::roomForRows() const { return topology_.ranks() * mostEntriesOf(rank_); }

std::size_t LatencyRoute::letterBytes(int sources, std::int64_t entries, std::int64_t rows,
                                      bool weighted) const {
  if (entries == 0) return sizeof(std::int32_t);
  return aligned(sizeof(std::int32_t) + routes::packedBytes(1, sources, entries, weighted)) +
         roomFor(rows, shape_.rowBytes());
}

std::size_t LatencyRoute::mostToRelay(int node) const {
  return letterBytes(1, mostEntriesOn(node), shape_.maxTokens, shape_.weighted);
}

std::size_t LatencyRoute::mostFromRelay(std::size_t sources, int holder) const {
  const auto count = static_cast<std::int64_t>(sources);
  const std::int64_t entries = mostEntriesOf(holder);
  const std::int64_t rows = way_.rowPerChoice ? entries : std::min(entries, shape_.maxTokens);
  return letterBytes(static_cast<int>(sources), count * entries, count * rows, false);
}

std::size_t LatencyRoute::dispatchArena() const {
  std::size_t bytes = 0;
  for (int node = 0; node < topology_.nodes(); ++node)
    if (relayOf(topology_, way_, rank_, node) != rank_) bytes += mostToRelay(node) + kMargin;
  for (const Relay::Source& source : relay_.sources)
    if (source.rank != rank_) bytes += mostToRelay(source.node) + kMargin;
  for (const Relay::Destination& to : relay_.destinations)
    bytes +=
        mostFromRelay(paths_.relayed[static_cast<std::size_t>(to.node)].size(), to.rank) + kMargin;
  for (const auto& [relay, sources] : paths_.relays)
    bytes += mostFromRelay(sources.size(), rank_) + kMargin;
  return bytes;
}

std::size_t LatencyRoute::combineArena() const {
  std::int64_t toRelays = 0, perHolder = 0, perNode = 0;
  std::size_t messages = relay_.sources.size() + relay_.destinations.size() + paths_.relays.size();
  for (const auto& [relay, sources] : paths_.relays)
    toRelays += static_cast<std::int64_t>(sources.size()) * mostEntriesOf(rank_);
  for (const Relay::Destination& from : relay_.destinations)
    perHolder +=
        static_cast<std::int64_t>(paths_.relayed[static_cast<std::size_t>(from.node)].size()) *
        mostEntriesOf(from.rank);
  for (const Relay::Source& source : relay_.sources)
    perNode += mostEntriesOn(source.node) * shape_.experts.grid.esp;
  std::int64_t sums = static_cast<std::int64_t>(relay_.sources.size()) * shape_.maxTokens;
  for (int node = 0; node < topology_.nodes(); ++node)
    if (relayOf(topology_, way_, rank_, node) != rank_) {
      sums += shape_.maxTokens;
      ++messages;
    }
  return roomFor(toRelays + std::min(perHolder, perNode) + sums, shape_.combineRowBytes()) +
         messages * kMargin;
}

std::byte* LatencyRoute::writeList(const RowList& list, bool weighted, std::byte* to) const {
  const std::int32_t entries = list.entries();
  std::memcpy(to, &entries, sizeof entries);
  routes::pack(list, weighted, to + sizeof entries);
  return to + letterBytes(list.sources, entries, 0, weighted);
}

const std::byte* LatencyRoute::read(const std::byte* from, std::size_t bytes, int sources,
                                    bool weighted, IndexedRows* rows) const {
  std::int32_t entries = 0;
  if (bytes < sizeof entries) return nullptr;
  std::memcpy(&entries, from, sizeof entries);
  const std::int64_t most = shape_.maxTokens * shape_.choices * sources;
  if (entries < 0 || entries > most) return nullptr;
  const std::size_t list = routes::packedBytes(1, sources, entries, weighted);
  if (letterBytes(sources, entries, 0, weighted) > bytes) return nullptr;
  try {
    routes::unpack({from + sizeof entries, list}, 1, sources, entries, weighted,
                   shape_.experts.count, &rows->list);
  } catch (const std::invalid_argument&) {
    return nullptr;
  }
  rows->index();
  if (bytes != letterBytes(sources, entries, rows->rows(), weighted)) return nullptr;
  return from + letterBytes(sources, entries, 0, weighted);
}

void LatencyRoute::waitForCalls(Communicator& communicator) const {
  // Each call that is not over keeps this.
  const std::weak_ptr<const LatencyRoute> self = weak_from_this();
  communicator.waitUntil([&self] { return self.use_count() <= 1; });
}

void LatencyRoute::set(Communicator& communicator, const AlgorithmChoice&, std::int64_t tokens,
                       const std::int32_t* chosen, const float* weights, void*) {
  waitForCalls(communicator);
  home_.fill(chosen, weights, static_cast<std::int32_t>(tokens));
  home_.cut(1);
  loads_.add(tokens * shape_.choices, chosen);
  set_ = true;
  dispatched_ = false;
}

const std::vector<std::int64_t>& LatencyRoute::expertBegins(Communicator& communicator) {
  waitForCalls(communicator);
  return here_.expertBegins;
}

void LatencyRoute::rankCounts(Communicator& communicator, std::int64_t* counts) const {
  waitForCalls(communicator);
  here_.rankCounts(topology_.ranks(), counts);
}

std::vector<std::int64_t> LatencyRoute::loads(Communicator& communicator) const {
  waitForCalls(communicator);
  return loads_.with(rowsSoFar_);
}

void LatencyRoute::forgetLoads(Communicator&) {
  loads_.forget();
  rowsSoFar_ = 0;
}

void LatencyRoute::launch(Communicator& communicator, const std::shared_ptr<CachedPlan>& plan,
                          Content& content, const void* input, void* output, std::size_t rowBytes,
                          void* stream) {
  if (stream != std::exchange(stream_, stream)) waitForCalls(communicator);
  Call call{{}, input, output, rowBytes, shape_.combineDatatype};
  call.own = plan;
  call.content = &content;
  call.keep = shared_from_this();
  communicator.launch(std::move(call), stream);
}

void LatencyRoute::dispatch(Communicator& communicator, const void* tokens, void* rows,
                            void* stream) {
  launch(communicator, dispatchPlan_, dispatch_, tokens, rows, shape_.rowBytes(), stream);
  dispatched_ = true;
}

void LatencyRoute::combine(Communicator& communicator, const void* rows, void* output, bool,
                           void* stream) {
  launch(communicator, combinePlan_, combine_, rows, output, shape_.combineRowBytes(), stream);
}

void LatencyRoute::Dispatch::reserve() {
  atRelay_.resize(route_.relay_.sources.size());
  arrived_.resize(route_.here_.from.size());
}

void LatencyRoute::Dispatch::begin(const Plan&, const std::byte* input, std::byte* output) {
  input_ = input;
  output_ = output;
  relayFilled_ = false;
}

std::size_t LatencyRoute::Dispatch::mostBytes(const Op& op) const {
  const Topology& topology = route_.topology_;
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    if (op.kind == OpKind::recv) return route_.mostToRelay(topology.nodeOf(route_.rank_));
    const IndexedRows& rows = route_.home_.of(topology.nodeOf(op.peer)).rows;
    return route_.letterBytes(1, rows.list.entries(), rows.rows(), route_.shape_.weighted);
  }
  if (op.kind == OpKind::send)
    return route_.mostFromRelay(
        route_.paths_.relayed[static_cast<std::size_t>(topology.nodeOf(op.peer))].size(), op.peer);
  return route_.mostFromRelay(route_.paths_.relays[route_.fromOfRank_[peer]].second.size(),
                              route_.rank_);
}

std::size_t LatencyRoute::Dispatch::write(const Op& op, std::byte* to) {
  std::byte* const begin = to;
  const std::size_t bytes = route_.shape_.rowBytes();
  if (op.lane == routes::kRelayLane) {
    const Home::Share& share = route_.home_.of(route_.topology_.nodeOf(op.peer));
    to = route_.writeList(share.rows.list, route_.shape_.weighted, to);
    for (const std::int32_t token : share.tokens)
      copyRow(to, input_ + roomFor(token, bytes), bytes);
  } else {
    fillRelay();
    const Relay::Destination& destination =
        route_.relay_.destinations[route_.destinationOfRank_[static_cast<std::size_t>(op.peer)]];
    to = route_.writeList(destination.rows.list, false, to);
    for (const Relay::Destination::Origin& origin : destination.origins)
      copyRow(to, rowOf(origin), bytes);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyRoute::Dispatch::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    const std::size_t i = route_.sourceOfRank_[peer];
    IndexedRows& rows = route_.relay_.sources[i].rows;
    atRelay_[i] = route_.read(from, bytes, 1, route_.shape_.weighted, &rows);
    return atRelay_[i] != nullptr && rows.rows() <= route_.shape_.maxTokens &&
           route_.relay_.canHandOn(route_.relay_.sources[i]);
  }
  const std::size_t i = route_.fromOfRank_[peer];
  IndexedRows& rows = route_.here_.from[i].rows;
  arrived_[i] = route_.read(from, bytes, static_cast<int>(route_.paths_.relays[i].second.size()),
                            false, &rows);
  return arrived_[i] != nullptr && route_.here_.holds(rows.list);
}

// When all sources have told.
void LatencyRoute::Dispatch::fillRelay() {
  if (!std::exchange(relayFilled_, true)) route_.relay_.fill(route_.home_);
}

const std::byte* LatencyRoute::Dispatch::rowOf(const Relay::Destination::Origin& origin) const {
  const auto source = static_cast<std::size_t>(origin.source);
  const Relay::Source& from = route_.relay_.sources[source];
  const std::size_t bytes = route_.shape_.rowBytes();
  if (from.rank != route_.rank_) return atRelay_[source] + roomFor(origin.row, bytes);
  const std::int32_t token =
      route_.home_.of(from.node).tokens[static_cast<std::size_t>(origin.row)];
  return input_ + roomFor(token, bytes);
}

bool LatencyRoute::Dispatch::work(const Op&, Misfit*) {
  fillRelay();
  const Relay::Destination* const own = route_.relay_.to(route_.rank_);
  for (Here::From& from : route_.here_.from)
    if (from.rank == route_.rank_) {
      from.rows = own->rows;
      from.rows.list.weights.clear();
    }
  route_.here_.fill();
  route_.rowsSoFar_ += route_.here_.rows();
  const std::size_t bytes = route_.shape_.rowBytes();
  for (std::size_t i = 0; i < route_.here_.from.size(); ++i) {
    const Here::From& from = route_.here_.from[i];
    for (std::int32_t row = 0; row < from.rows.rows(); ++row) {
      const std::byte* const at = from.rank == route_.rank_
                                      ? rowOf(own->origins[static_cast<std::size_t>(row)])
                                      : arrived_[i] + roomFor(row, bytes);
      for (std::int32_t entry = from.rows.rowBegins[row]; entry < from.rows.rowBegins[row + 1];
           ++entry)
        std::memcpy(output_ + roomFor(from.places[entry], bytes), at, bytes);
    }
  }
  return true;
}

void LatencyRoute::Combine::reserve() {
  const auto nodes = static_cast<std::size_t>(route_.topology_.nodes());
  const routes::Experts& experts = route_.shape_.experts;
  terms_.resize(route_.relay_.destinations.size());
  back_.resize(nodes);
  next_.resize(nodes);
  std::int64_t own = 0;
  for (const Relay::Source& source : route_.relay_.sources) own += source.rank == route_.rank_;
  sums_.resize(roomFor(own * route_.shape_.maxTokens, route_.shape_.combineRowBytes()));
  const std::size_t most = std::max(nodes, static_cast<std::size_t>(route_.shape_.choices) *
                                               static_cast<std::size_t>(experts.grid.esp));
  sources_.reserve(most);
  weights_.reserve(most);
}

void LatencyRoute::Combine::begin(const Plan&, const std::byte* input, std::byte* output) {
  input_ = input;
  output_ = output;
}

std::size_t LatencyRoute::Combine::mostBytes(const Op& op) const {
  const auto peer = static_cast<std::size_t>(op.peer);
  std::int64_t rows = 0;
  if (op.lane == routes::kHolderLane)
    rows = op.kind == OpKind::send
               ? route_.here_.from[route_.fromOfRank_[peer]].rows.list.entries()
               : route_.relay_.destinations[route_.destinationOfRank_[peer]].rows.list.entries();
  else
    rows = op.kind == OpKind::send ? route_.relay_.sources[route_.sourceOfRank_[peer]].rows.rows()
                                   : route_.home_.of(route_.topology_.nodeOf(op.peer)).rows.rows();
  return roomFor(rows, route_.shape_.combineRowBytes());
}

std::size_t LatencyRoute::Combine::write(const Op& op, std::byte* to) {
  const std::byte* const begin = to;
  const std::size_t bytes = route_.shape_.combineRowBytes();
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kHolderLane) {
    for (const std::int32_t place : route_.here_.from[route_.fromOfRank_[peer]].places)
      copyRow(to, input_ + roomFor(place, bytes), bytes);
  } else {
    const Relay::Source& source = route_.relay_.sources[route_.sourceOfRank_[peer]];
    for (std::int32_t row = 0; row < source.rows.rows(); ++row, to += bytes) sum(source, row, to);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyRoute::Combine::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  if (bytes != mostBytes(op)) return false;
  if (op.lane == routes::kHolderLane)
    terms_[route_.destinationOfRank_[static_cast<std::size_t>(op.peer)]] = from;
  else
    back_[static_cast<std::size_t>(route_.topology_.nodeOf(op.peer))] = from;
  return true;
}

void LatencyRoute::Combine::sum(const Relay::Source& source, std::int32_t row, std::byte* to) {
  const std::size_t bytes = route_.shape_.combineRowBytes();
  const moecclDataType_t datatype = route_.shape_.combineDatatype;
  sources_.clear();
  weights_.clear();
  for (std::int32_t t = source.termBegins[row]; t < source.termBegins[row + 1]; ++t) {
    const Relay::Source::Term& term = source.terms[t];
    const auto index = static_cast<std::size_t>(term.destination);
    const Relay::Destination& from = route_.relay_.destinations[index];
    if (from.rank == route_.rank_) {
      const auto own = route_.fromOfRank_[static_cast<std::size_t>(route_.rank_)];
      sources_.push_back(input_ + roomFor(route_.here_.from[own].places[term.entry], bytes));
    } else {
      sources_.push_back(terms_[index] + roomFor(term.entry, bytes));
    }
    if (route_.shape_.weighted) weights_.push_back(from.rows.list.weights[term.entry]);
  }
  if (route_.shape_.weighted)
    addWeighted(datatype, to, sources_.data(), weights_.data(), 1, sources_.size(), bytes);
  else
    reduce(moecclSum, datatype, to, sources_.data(), 1, sources_.size(), bytes);
}

// Those of the rank's own tokens for which nobody else is the relay; what is a token's only sum is
// its output.
void LatencyRoute::Combine::sumOwn() {
  const std::size_t bytes = route_.shape_.combineRowBytes();
  std::byte* to = sums_.data();
  for (const Relay::Source& source : route_.relay_.sources) {
    if (source.rank != route_.rank_) continue;
    const Home::Share& share = route_.home_.of(source.node);
    back_[static_cast<std::size_t>(source.node)] = to;
    for (std::int32_t row = 0; row < share.rows.rows(); ++row, to += bytes) {
      const std::int32_t token = share.tokens[static_cast<std::size_t>(row)];
      sum(source, row, route_.home_.nodesOf(token) == 1 ? output_ + roomFor(token, bytes) : to);
    }
  }
}

void LatencyRoute::Combine::finish(std::int32_t token) {
  const std::size_t bytes = route_.shape_.combineRowBytes();
  std::byte* const to = output_ + roomFor(token, bytes);
  sources_.clear();
  bool own = false;
  for (int node = 0; node < route_.topology_.nodes(); ++node) {
    const std::vector<std::int32_t>& tokens = route_.home_.of(node).tokens;
    std::size_t& next = next_[static_cast<std::size_t>(node)];
    if (next == tokens.size() || tokens[next] != token) continue;
    own = relayOf(route_.topology_, route_.way_, route_.rank_, node) == route_.rank_;
    sources_.push_back(back_[static_cast<std::size_t>(node)] + next++ * bytes);
  }
  if (sources_.empty())
    std::memset(to, 0, bytes);
  else if (sources_.size() > 1)
    reduce(moecclSum, route_.shape_.combineDatatype, to, sources_.data(), 1, sources_.size(),
           bytes);
  else if (!own)
    std::memcpy(to, sources_[0], bytes);
}

bool LatencyRoute::Combine::work(const Op&, Misfit*) {
  sumOwn();
  std::ranges::fill(next_, 0);
  for (std::int32_t token = 0; token < route_.home_.tokens(); ++token) finish(token);
  return true;
}

}  // namespace moeccl

// Makes the plans of a pass once, with memory for the largest messages. A dispatch sends letters,
// which are a list of rows and the rows; a combine sends rows, and relays add them up.
#include "src/route/latency_pass.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/weigh.h"
#include "src/base/round_up.h"
#include "src/route/route_choice.h"

namespace moeccl {
namespace {

using routes::Here;
using routes::Home;
using routes::IndexedRows;
using routes::Relay;
using routes::RowList;

// Alignment of the rows in a letter.
constexpr std::size_t kAlignment = 16;
// The most that the arena takes for a message besides its bytes.
constexpr std::size_t kMargin = 64;

std::size_t aligned(std::size_t bytes) { return roundUp(bytes, kAlignment); }

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

LatencyPass::LatencyPass(Communicator& communicator, const RouteShape& shape,
                         const RoutePrices& prices)
    : RoutePass(shape, communicator.rank(), prices),
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
      combine_(*this) {
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

std::int64_t LatencyPass::mostEntriesOf(int holder) const {
  const routes::Experts& experts = shape_.experts;
  const int position = experts.grid.positionOf(holder);
  return shape_.maxTokens *
         std::min(shape_.choices, experts.begin(position + 1) - experts.begin(position));
}

std::int64_t LatencyPass::mostEntriesOn(int node) const {
  return shape_.maxTokens * std::min(shape_.choices, expertsOn_[static_cast<std::size_t>(node)]);
}

std::int64_t LatencyPass::roomForRows() const { return topology_.ranks() * mostEntriesOf(rank_); }

std::size_t LatencyPass::letterBytes(int sources, std::int64_t entries, std::int64_t rows,
                                     bool weighted) const {
  if (entries == 0) return sizeof(std::int32_t);
  return aligned(sizeof(std::int32_t) + routes::packedBytes(1, sources, entries, weighted)) +
         roomFor(rows, shape_.sentRowBytes());
}

std::size_t LatencyPass::mostToRelay(int node) const {
  return letterBytes(1, mostEntriesOn(node), shape_.maxTokens, shape_.hasWeights());
}

std::size_t LatencyPass::mostFromRelay(std::size_t sources, int holder) const {
  const auto count = static_cast<std::int64_t>(sources);
  const std::int64_t entries = mostEntriesOf(holder);
  const std::int64_t rows = way_.rowPerChoice ? entries : std::min(entries, shape_.maxTokens);
  return letterBytes(static_cast<int>(sources), count * entries, count * rows, false);
}

std::size_t LatencyPass::dispatchArena() const {
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

std::size_t LatencyPass::combineArena() const {
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

std::byte* LatencyPass::writeList(const RowList& list, bool weighted, std::byte* to) const {
  const std::int32_t entries = list.entries();
  std::memcpy(to, &entries, sizeof entries);
  routes::pack(list, weighted, to + sizeof entries);
  return to + letterBytes(list.sources, entries, 0, weighted);
}

const std::byte* LatencyPass::read(const std::byte* from, std::size_t bytes, int sources,
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

void LatencyPass::waitForCalls(Communicator& communicator) const {
  // Each call that is not over keeps this.
  const std::weak_ptr<const LatencyPass> self = weak_from_this();
  communicator.waitUntil([&self] { return self.use_count() <= 1; });
}

void LatencyPass::begin(Communicator& communicator, const Routing& routing, void*) {
  waitForCalls(communicator);
  home_.fill(routing.experts, routing.floats(), static_cast<std::int32_t>(routing.tokens));
  home_.cut(1);
  loads_.add(routing.tokens * shape_.choices, routing.experts);
  dispatched_ = false;
}

const std::vector<std::int64_t>& LatencyPass::expertBegins(Communicator& communicator) {
  waitForCalls(communicator);
  return here_.expertBegins;
}

void LatencyPass::rankCounts(Communicator& communicator, std::int64_t* counts) const {
  waitForCalls(communicator);
  here_.rankCounts(topology_.ranks(), counts);
}

std::vector<std::int64_t> LatencyPass::loads(Communicator& communicator) const {
  waitForCalls(communicator);
  return loads_.counts();
}

void LatencyPass::launch(Communicator& communicator, const std::shared_ptr<CachedPlan>& plan,
                         Content& content, const void* input, void* output, std::size_t rowBytes,
                         void* stream) {
  if (stream != std::exchange(stream_, stream)) waitForCalls(communicator);
  RowsCall call{{input, output, rowBytes, shape_.datatype}, plan};
  call.content = &content;
  call.keep = shared_from_this();
  communicator.launch({std::move(call)}, stream);
}

void LatencyPass::dispatch(Communicator& communicator, const void* tokens, void* rows,
                           void* stream) {
  launch(communicator, dispatchPlan_, dispatch_, tokens, rows, shape_.sentRowBytes(), stream);
  dispatched_ = true;
}

void LatencyPass::combine(Communicator& communicator, const void* rows, void* output, bool,
                          void* stream) {
  launch(communicator, combinePlan_, combine_, rows, output, shape_.combineRowBytes(), stream);
}

void LatencyPass::Dispatch::reserve() {
  atRelay_.resize(pass_.relay_.sources.size());
  arrived_.resize(pass_.here_.from.size());
  if (pass_.shape_.quantises())
    quantised_.resize(roomFor(pass_.shape_.maxTokens, pass_.shape_.sentRowBytes()));
}

void LatencyPass::Dispatch::begin(const Plan&, const std::byte* input, std::byte* output) {
  const RouteShape& shape = pass_.shape_;
  if (shape.quantises())
    quantise(shape.wire, shape.tokenDatatype, input, static_cast<std::size_t>(pass_.tokens()),
             static_cast<std::size_t>(shape.hidden), quantised_.data());
  input_ = shape.quantises() ? quantised_.data() : input;
  output_ = output;
  relayFilled_ = false;
}

std::size_t LatencyPass::Dispatch::mostBytes(const Op& op) const {
  const Topology& topology = pass_.topology_;
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    if (op.kind == OpKind::recv) return pass_.mostToRelay(topology.nodeOf(pass_.rank_));
    const IndexedRows& rows = pass_.home_.of(topology.nodeOf(op.peer)).rows;
    return pass_.letterBytes(1, rows.list.entries(), rows.rows(), pass_.shape_.hasWeights());
  }
  if (op.kind == OpKind::send)
    return pass_.mostFromRelay(
        pass_.paths_.relayed[static_cast<std::size_t>(topology.nodeOf(op.peer))].size(), op.peer);
  return pass_.mostFromRelay(pass_.paths_.relays[pass_.fromOfRank_[peer]].second.size(),
                             pass_.rank_);
}

std::size_t LatencyPass::Dispatch::write(const Op& op, std::byte* to) {
  std::byte* const begin = to;
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  if (op.lane == routes::kRelayLane) {
    const Home::Share& share = pass_.home_.of(pass_.topology_.nodeOf(op.peer));
    to = pass_.writeList(share.rows.list, pass_.shape_.hasWeights(), to);
    for (const std::int32_t token : share.tokens)
      copyRow(to, input_ + roomFor(token, bytes), bytes);
  } else {
    fillRelay();
    const Relay::Destination& destination =
        pass_.relay_.destinations[pass_.destinationOfRank_[static_cast<std::size_t>(op.peer)]];
    to = pass_.writeList(destination.rows.list, false, to);
    for (const Relay::Destination::Origin& origin : destination.origins)
      copyRow(to, rowOf(origin), bytes);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyPass::Dispatch::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kRelayLane) {
    const std::size_t i = pass_.sourceOfRank_[peer];
    IndexedRows& rows = pass_.relay_.sources[i].rows;
    atRelay_[i] = pass_.read(from, bytes, 1, pass_.shape_.hasWeights(), &rows);
    return atRelay_[i] != nullptr && rows.rows() <= pass_.shape_.maxTokens &&
           pass_.relay_.canHandOn(pass_.relay_.sources[i]);
  }
  const std::size_t i = pass_.fromOfRank_[peer];
  IndexedRows& rows = pass_.here_.from[i].rows;
  arrived_[i] =
      pass_.read(from, bytes, static_cast<int>(pass_.paths_.relays[i].second.size()), false, &rows);
  return arrived_[i] != nullptr && pass_.here_.holds(rows.list);
}

// Fills the relay's lists once, when all sources have told theirs.
void LatencyPass::Dispatch::fillRelay() {
  if (!std::exchange(relayFilled_, true)) pass_.relay_.fill(pass_.home_);
}

const std::byte* LatencyPass::Dispatch::rowOf(const Relay::Destination::Origin& origin) const {
  const auto source = static_cast<std::size_t>(origin.source);
  const Relay::Source& from = pass_.relay_.sources[source];
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  if (from.rank != pass_.rank_) return atRelay_[source] + roomFor(origin.row, bytes);
  const std::int32_t token = pass_.home_.of(from.node).tokens[static_cast<std::size_t>(origin.row)];
  return input_ + roomFor(token, bytes);
}

bool LatencyPass::Dispatch::work(const Op&, Misfit*) {
  fillRelay();
  const Relay::Destination* const own = pass_.relay_.to(pass_.rank_);
  for (Here::From& from : pass_.here_.from)
    if (from.rank == pass_.rank_) {
      from.rows = own->rows;
      from.rows.list.weights.clear();
    }
  pass_.here_.fill();
  pass_.loads_.addRows(pass_.here_.rows());
  const std::size_t bytes = pass_.shape_.sentRowBytes();
  for (std::size_t i = 0; i < pass_.here_.from.size(); ++i) {
    const Here::From& from = pass_.here_.from[i];
    for (std::int32_t row = 0; row < from.rows.rows(); ++row) {
      const std::byte* const at = from.rank == pass_.rank_
                                      ? rowOf(own->origins[static_cast<std::size_t>(row)])
                                      : arrived_[i] + roomFor(row, bytes);
      for (std::int32_t entry = from.rows.rowBegins[row]; entry < from.rows.rowBegins[row + 1];
           ++entry)
        setRow(from.places[entry], at);
    }
  }
  return true;
}

void LatencyPass::Dispatch::setRow(std::int32_t place, const std::byte* from) {
  const RouteShape& shape = pass_.shape_;
  std::byte* const to = output_ + roomFor(place, shape.rowBytes());
  if (shape.quantises())
    dequantise(shape.wire, shape.tokenDatatype, from, 1, static_cast<std::size_t>(shape.hidden),
               to);
  else
    std::memcpy(to, from, shape.rowBytes());
}

void LatencyPass::Combine::reserve() {
  const auto nodes = static_cast<std::size_t>(pass_.topology_.nodes());
  const routes::Experts& experts = pass_.shape_.experts;
  terms_.resize(pass_.relay_.destinations.size());
  back_.resize(nodes);
  next_.resize(nodes);
  std::int64_t own = 0;
  for (const Relay::Source& source : pass_.relay_.sources) own += source.rank == pass_.rank_;
  sums_.resize(roomFor(own * pass_.shape_.maxTokens, pass_.shape_.combineRowBytes()));
  const std::size_t most = std::max(nodes, static_cast<std::size_t>(pass_.shape_.choices) *
                                               static_cast<std::size_t>(experts.grid.esp));
  sources_.reserve(most);
  weights_.reserve(most);
}

void LatencyPass::Combine::begin(const Plan&, const std::byte* input, std::byte* output) {
  input_ = input;
  output_ = output;
}

std::size_t LatencyPass::Combine::mostBytes(const Op& op) const {
  const auto peer = static_cast<std::size_t>(op.peer);
  std::int64_t rows = 0;
  if (op.lane == routes::kHolderLane)
    rows = op.kind == OpKind::send
               ? pass_.here_.from[pass_.fromOfRank_[peer]].rows.list.entries()
               : pass_.relay_.destinations[pass_.destinationOfRank_[peer]].rows.list.entries();
  else
    rows = op.kind == OpKind::send ? pass_.relay_.sources[pass_.sourceOfRank_[peer]].rows.rows()
                                   : pass_.home_.of(pass_.topology_.nodeOf(op.peer)).rows.rows();
  return roomFor(rows, pass_.shape_.combineRowBytes());
}

std::size_t LatencyPass::Combine::write(const Op& op, std::byte* to) {
  const std::byte* const begin = to;
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  const auto peer = static_cast<std::size_t>(op.peer);
  if (op.lane == routes::kHolderLane) {
    for (const std::int32_t place : pass_.here_.from[pass_.fromOfRank_[peer]].places)
      copyRow(to, input_ + roomFor(place, bytes), bytes);
  } else {
    const Relay::Source& source = pass_.relay_.sources[pass_.sourceOfRank_[peer]];
    for (std::int32_t row = 0; row < source.rows.rows(); ++row, to += bytes) sum(source, row, to);
  }
  return static_cast<std::size_t>(to - begin);
}

bool LatencyPass::Combine::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit*) {
  if (bytes != mostBytes(op)) return false;
  if (op.lane == routes::kHolderLane)
    terms_[pass_.destinationOfRank_[static_cast<std::size_t>(op.peer)]] = from;
  else
    back_[static_cast<std::size_t>(pass_.topology_.nodeOf(op.peer))] = from;
  return true;
}

void LatencyPass::Combine::sum(const Relay::Source& source, std::int32_t row, std::byte* to) {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  const moecclDataType_t datatype = pass_.shape_.datatype;
  sources_.clear();
  weights_.clear();
  for (std::int32_t t = source.termBegins[row]; t < source.termBegins[row + 1]; ++t) {
    const Relay::Source::Term& term = source.terms[t];
    const auto index = static_cast<std::size_t>(term.destination);
    const Relay::Destination& from = pass_.relay_.destinations[index];
    if (from.rank == pass_.rank_) {
      const auto own = pass_.fromOfRank_[static_cast<std::size_t>(pass_.rank_)];
      sources_.push_back(input_ + roomFor(pass_.here_.from[own].places[term.entry], bytes));
    } else {
      sources_.push_back(terms_[index] + roomFor(term.entry, bytes));
    }
    if (pass_.shape_.hasWeights()) weights_.push_back(from.rows.list.weights[term.entry]);
  }
  if (pass_.shape_.hasWeights())
    addWeighted(datatype, to, sources_.data(), weights_.data(), 1, sources_.size(), bytes);
  else
    reduce(moecclSum, datatype, to, sources_.data(), 1, sources_.size(), bytes);
}

// Adds up the rows of the rank's own tokens for which nobody else is the relay. A token's only sum
// is its output.
void LatencyPass::Combine::sumOwn() {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  std::byte* to = sums_.data();
  for (const Relay::Source& source : pass_.relay_.sources) {
    if (source.rank != pass_.rank_) continue;
    const Home::Share& share = pass_.home_.of(source.node);
    back_[static_cast<std::size_t>(source.node)] = to;
    for (std::int32_t row = 0; row < share.rows.rows(); ++row, to += bytes) {
      const std::int32_t token = share.tokens[static_cast<std::size_t>(row)];
      sum(source, row, pass_.home_.nodesOf(token) == 1 ? output_ + roomFor(token, bytes) : to);
    }
  }
}

void LatencyPass::Combine::finish(std::int32_t token) {
  const std::size_t bytes = pass_.shape_.combineRowBytes();
  std::byte* const to = output_ + roomFor(token, bytes);
  sources_.clear();
  bool own = false;
  for (int node = 0; node < pass_.topology_.nodes(); ++node) {
    const std::vector<std::int32_t>& tokens = pass_.home_.of(node).tokens;
    std::size_t& next = next_[static_cast<std::size_t>(node)];
    if (next == tokens.size() || tokens[next] != token) continue;
    own = relayOf(pass_.topology_, pass_.way_, pass_.rank_, node) == pass_.rank_;
    sources_.push_back(back_[static_cast<std::size_t>(node)] + next++ * bytes);
  }
  if (sources_.empty())
    std::memset(to, 0, bytes);
  else if (sources_.size() > 1)
    reduce(moecclSum, pass_.shape_.datatype, to, sources_.data(), 1, sources_.size(), bytes);
  else if (!own)
    std::memcpy(to, sources_[0], bytes);
}

bool LatencyPass::Combine::work(const Op&, Misfit*) {
  sumOwn();
  std::ranges::fill(next_, 0);
  for (std::int32_t token = 0; token < pass_.home_.tokens(); ++token) finish(token);
  return true;
}

}  // namespace moeccl

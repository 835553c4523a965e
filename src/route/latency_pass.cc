// Makes the plans of a pass once, with memory for the largest messages, and the letters of its
// dispatch, which are a list of rows and the rows.
#include "src/route/latency_pass.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "src/base/round_up.h"
#include "src/route/route_choice.h"

namespace moeccl {
namespace {

using routes::IndexedRows;
using routes::Relay;
using routes::RowList;

// Alignment of the rows in a letter.
constexpr std::size_t kAlignment = 16;
// The most that the arena takes for a message besides its bytes.
constexpr std::size_t kMargin = 64;

std::size_t aligned(std::size_t bytes) { return roundUp(bytes, kAlignment); }

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
         bytesOf(rows, shape_.sentRowBytes());
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
  return bytesOf(toRelays + std::min(perHolder, perNode) + sums, shape_.combineRowBytes()) +
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

}  // namespace moeccl

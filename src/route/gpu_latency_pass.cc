// Takes all memory of a pass once and lists what its four exchanges send and receive. Each call
// then enqueues kernels and grouped sends and receives on the caller's stream.
#include "src/route/gpu_latency_pass.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "src/base/round_up.h"
#include "src/exec/nccl_lanes.h"
#include "src/route/route_choice.h"

namespace moeccl {
namespace {

// Alignments of the parts of a region, and of those of memory.
constexpr std::size_t kAlignment = 16, kRoomAlignment = 256;

std::size_t bytesOf(std::int64_t rows, std::size_t rowBytes) {
  return static_cast<std::size_t>(rows) * rowBytes;
}

std::shared_ptr<const PlanName> nameOf(const char* what, const routes::RouteAlgorithm& algorithm) {
  return std::make_shared<PlanName>(std::string(what) + " (" + std::string(algorithm.name) +
                                    ", latency mode)");
}

}  // namespace

GpuLatencyPass::GpuLatencyPass(Communicator& communicator, const RouteShape& shape,
                               const RoutePrices& prices)
    : RoutePass(shape, communicator.rank(), prices),
      algorithm_(algorithmOfLatency(shape, communicator.topology(), rank_, prices)),
      way_(algorithm_.way()),
      paths_(routes::pathsOf(communicator.topology(), way_, rank_)),
      beginName_(nameOf("route: choices", algorithm_)),
      dispatchName_(nameOf("token dispatch", algorithm_)),
      combineName_(nameOf("token combine", algorithm_)) {
  const Topology& topology = communicator.topology();
  const routes::Experts& experts = shape.experts;
  const Grid& grid = experts.grid;
  rows_.ranks = topology.ranks();
  rows_.nodes = topology.nodes();
  rows_.rank = rank_;
  rows_.choices = shape.choices;
  rows_.experts = experts.count;
  rows_.positions = grid.ep;
  rows_.shards = grid.esp;
  rows_.firstExpert = shape.firstExpert(rank_);
  rows_.localExperts = shape.localExperts(rank_);
  begins_.resize(static_cast<std::size_t>(rows_.localExperts) + 1);
  rows_.weighted = shape.weighs();
  rows_.datatype = shape.datatype;
  rows_.combineBytes = shape.combineRowBytes();
  rows_.rowBytes = shape.rowBytes();

  // Lists, one behind the other.
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  std::vector<std::int32_t> slots(ranks), holders, nodes, sources, sumNodes, indices;
  std::int32_t slot = 0;
  for (const auto& [relay, from] : paths_.relays) {
    firstSlot_.push_back(slot);
    for (const int source : from) slots[static_cast<std::size_t>(source)] = slot++;
  }
  ownSlot_ = slots[static_cast<std::size_t>(rank_)];
  for (int each = 0; each < grid.ep; ++each)
    for (int shard = 0; shard < grid.esp; ++shard) holders.push_back(grid.rankOf(each, shard));
  std::vector<std::int64_t> termFirst(ranks, 0);
  for (int rank = 0; rank < topology.ranks(); ++rank) nodes.push_back(topology.nodeOf(rank));
  for (int node = 0; node < topology.nodes(); ++node) {
    const std::vector<int>& relayed = paths_.relayed[static_cast<std::size_t>(node)];
    for (std::size_t i = 0; i < relayed.size(); ++i) {
      sources.push_back(relayed[i]);
      sumNodes.push_back(node);
      indices.push_back(static_cast<std::int32_t>(i));
    }
    for (const int holder : topology.ranksOn(node)) {
      if (holder == rank_) continue;
      termFirst[static_cast<std::size_t>(holder)] = rows_.termRows;
      rows_.termRows += std::ssize(relayed) * rows_.mostAt(grid.positionOf(holder));
    }
  }
  rows_.sums = static_cast<std::int32_t>(sources.size());
  makeRoom(communicator, {slots, holders, nodes, sources, sumNodes, indices}, termFirst);
  planExchanges(topology, slots, termFirst);
}

std::int64_t GpuLatencyPass::roomForRows() const {
  return rows_.ranks * shape_.maxTokens * rows_.most();
}

std::size_t GpuLatencyPass::headerBytes(std::int64_t bucket) const {
  return roundUp(bytesOf(bucket * shape_.choices, sizeof(std::int32_t) + sizeof(float)),
                 kAlignment);
}

std::size_t GpuLatencyPass::regionBytes(std::int64_t bucket) const {
  return headerBytes(bucket) + roundUp(bytesOf(bucket, rows_.rowBytes), kAlignment);
}

void GpuLatencyPass::makeRoom(Communicator& communicator,
                              const std::array<std::vector<std::int32_t>, 6>& lists,
                              const std::vector<std::int64_t>& termFirst) {
  const std::int64_t most = shape_.maxTokens, ranks = rows_.ranks;
  const std::int64_t runs = rows_.localExperts * ranks;
  std::size_t room = 0;
  const auto take = [&](std::size_t bytes) {
    return std::exchange(room, room + roundUp(bytes, kRoomAlignment));
  };
  const std::size_t loads = take(bytesOf(rows_.experts + 1, sizeof(std::int64_t)));
  const std::size_t begins = take(bytesOf(rows_.localExperts + 1, sizeof(std::int64_t)));
  const std::size_t counts = take(bytesOf(runs, sizeof(std::int64_t)));
  const std::size_t firsts = take(bytesOf(runs, sizeof(std::int64_t)));
  const std::size_t places = take(bytesOf(ranks * most * rows_.choices, sizeof(std::int32_t)));
  const std::size_t regions = take(bytesOf(ranks, regionBytes(most)));
  const std::size_t stage = take(bytesOf(roomForRows(), rows_.combineBytes));
  const std::size_t terms = take(bytesOf(rows_.termRows * most, rows_.combineBytes));
  const std::size_t sums = take(bytesOf(rows_.sums * most, rows_.combineBytes));
  const std::size_t back = take(bytesOf(rows_.nodes * most, rows_.combineBytes));

  communicator.enqueue(beginName_, nullptr, 0, [&](NcclLanes& lanes) {
    const Gpu::Stream stream = lanes.stream(0, false);
    std::size_t listBytes = termFirst.size() * sizeof(std::int64_t);
    for (const auto& list : lists) listBytes += list.size() * sizeof(std::int32_t);
    room_ = lanes.rowMemory()->take(room, false);
    tables_ = lanes.rowMemory()->take(listBytes, true);
    std::size_t at = 0;
    const auto put = [&]<typename T>(const std::vector<T>& list) {
      const std::size_t bytes = list.size() * sizeof(T);
      if (bytes > 0) std::memcpy(tables_->host + at, list.data(), bytes);
      return reinterpret_cast<const T*>(tables_->device + std::exchange(at, at + bytes));
    };
    rows_.termFirst = put(termFirst);
    rows_.slotOf = put(lists[0]);
    rows_.holders = put(lists[1]);
    rows_.nodeOf = put(lists[2]);
    rows_.sumSource = put(lists[3]);
    rows_.sumNode = put(lists[4]);
    rows_.sumIndex = put(lists[5]);
    const auto in = [&](std::size_t offset) { return room_->device + offset; };
    rows_.loads = reinterpret_cast<std::int64_t*>(in(loads));
    rows_.begins = reinterpret_cast<std::int64_t*>(in(begins));
    rows_.counts = reinterpret_cast<std::int64_t*>(in(counts));
    rows_.firsts = reinterpret_cast<std::int64_t*>(in(firsts));
    rows_.places = reinterpret_cast<std::int32_t*>(in(places));
    rows_.regions = in(regions);
    rows_.stage = in(stage);
    rows_.terms = in(terms);
    rows_.sumRows = in(sums);
    rows_.back = in(back);
    lanes.begin(stream, {});
    lanes.rowMemory()->copy(*tables_, listBytes, stream);
    lanes.gpu().clear(in(loads), bytesOf(rows_.experts + 1, sizeof(std::int64_t)), stream);
    lanes.end(stream);
  });
}

void GpuLatencyPass::planExchanges(const Topology& topology, const std::vector<std::int32_t>& slots,
                                   const std::vector<std::int64_t>& termFirst) {
  const auto slotOf = [&](int rank) { return std::int64_t{slots[static_cast<std::size_t>(rank)]}; };
  const auto relayedFor = [&](int node) -> const std::vector<int>& {
    return paths_.relayed[static_cast<std::size_t>(node)];
  };
  const int own = topology.nodeOf(rank_);
  const std::int64_t most = rows_.most();
  for (int node = 0; node < topology.nodes(); ++node) {
    const int relay = relayOf(topology, way_, rank_, node);
    if (relay == rank_) continue;
    toRelays_.push_back({true, relay, rows_.regions, slotOf(rank_), 1, true});
    fromRelaysBack_.push_back({false, relay, rows_.back, node, 1, false});
  }
  for (const int source : relayedFor(own))
    if (source != rank_)
      toRelays_.push_back({false, source, rows_.regions, slotOf(source), 1, true});
  for (std::int64_t sum = 0, node = 0; node < topology.nodes(); ++node)
    for (const int source : relayedFor(static_cast<int>(node))) {
      if (source != rank_) fromRelaysBack_.push_back({true, source, rows_.sumRows, sum, 1, false});
      ++sum;
    }
  for (int node = 0; node < topology.nodes(); ++node) {
    const std::vector<int>& relayed = relayedFor(node);
    if (relayed.empty()) continue;
    // For other nodes than its own a relay has its own rows alone.
    const std::int64_t first = slotOf(relayed[0]), count = std::ssize(relayed);
    for (const int holder : topology.ranksOn(node)) {
      if (holder == rank_) continue;
      fromRelays_.push_back({true, holder, rows_.regions, first, count, true});
      toRelaysBack_.push_back(
          {false, holder, rows_.terms, termFirst[static_cast<std::size_t>(holder)],
           count * rows_.mostAt(shape_.experts.grid.positionOf(holder)), false});
    }
  }
  for (std::size_t i = 0; i < paths_.relays.size(); ++i) {
    const auto& [relay, sources] = paths_.relays[i];
    if (relay == rank_) continue;
    fromRelays_.push_back({false, relay, rows_.regions, firstSlot_[i], std::ssize(sources), true});
    toRelaysBack_.push_back(
        {true, relay, rows_.stage, firstSlot_[i] * most, std::ssize(sources) * most, false});
  }
}

void GpuLatencyPass::exchange(NcclLanes& lanes, const std::vector<Part>& parts,
                              void* stream) const {
  if (std::ranges::none_of(parts, [](const Part& part) { return part.count > 0; })) return;
  LaneGroup group(lanes, 0, stream);
  for (const Part& part : parts) {
    if (part.count == 0) continue;
    const std::size_t unit =
        part.regions ? rows_.regionBytes : bytesOf(rows_.bucket, rows_.combineBytes);
    std::byte* const at = part.from + bytesOf(part.first, unit);
    if (part.isSend)
      group.send(at, bytesOf(part.count, unit), part.peer);
    else
      group.recv(at, bytesOf(part.count, unit), part.peer);
  }
  group.end();
}

// Enqueues a call behind the calls before; a graph keeps the memory that it uses.
template <typename Body>
void GpuLatencyPass::launch(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
                            std::int64_t bucket, void* stream, const Body& body) {
  communicator.enqueue(name, stream, static_cast<std::size_t>(bucket), [&](NcclLanes& lanes) {
    lanes.begin(stream, {});
    if (lanes.isCapturing()) {
      lanes.gpu().keepInGraph(stream, tables_);
      lanes.gpu().keepInGraph(stream, room_);
    }
    body(lanes);
    lanes.end(stream);
  });
  stream_ = stream;
}

void GpuLatencyPass::begin(Communicator& communicator, const Routing& routing, void* stream) {
  const std::int64_t tokens = routing.tokens;
  const auto fits = std::ranges::find_if(
      shape_.buckets, [tokens](std::int64_t bucket) { return bucket >= tokens; });
  rows_.bucket = fits == shape_.buckets.end() ? shape_.maxTokens : *fits;
  rows_.tokens = tokens;
  rows_.headerBytes = headerBytes(rows_.bucket);
  rows_.regionBytes = regionBytes(rows_.bucket);
  rows_.chosen = routing.experts;
  rows_.weights = routing.floats();
  launch(communicator, beginName_, 0, stream,
         [&](NcclLanes& lanes) { lanes.gpu().runLatency(LatencyStep::choices, rows_, stream); });
  dispatched_ = false;
}

void GpuLatencyPass::dispatch(Communicator& communicator, const void* tokens, void* rows,
                              void* stream) {
  LatencyRows call = rows_;
  call.output = static_cast<std::byte*>(rows);
  launch(communicator, dispatchName_, rows_.bucket, stream, [&](NcclLanes& lanes) {
    Gpu& gpu = lanes.gpu();
    const std::size_t bytes = bytesOf(rows_.tokens, rows_.rowBytes);
    const BlockCopy own{
        ownRegion() + rows_.headerBytes, 0, static_cast<const std::byte*>(tokens), 0, bytes, 1};
    if (bytes > 0) gpu.copyBlocks({&own, 1}, stream);
    exchange(lanes, toRelays_, stream);
    exchange(lanes, fromRelays_, stream);
    for (const LatencyStep step :
         {LatencyStep::counts, LatencyStep::begins, LatencyStep::places, LatencyStep::rows})
      gpu.runLatency(step, call, stream);
  });
  dispatched_ = true;
}

void GpuLatencyPass::combine(Communicator& communicator, const void* rows, void* output, bool,
                             void* stream) {
  LatencyRows call = rows_;
  call.input = static_cast<const std::byte*>(rows);
  call.output = static_cast<std::byte*>(output);
  launch(communicator, combineName_, rows_.bucket, stream, [&](NcclLanes& lanes) {
    Gpu& gpu = lanes.gpu();
    gpu.runLatency(LatencyStep::pack, call, stream);
    exchange(lanes, toRelaysBack_, stream);
    gpu.runLatency(LatencyStep::sums, call, stream);
    exchange(lanes, fromRelaysBack_, stream);
    gpu.runLatency(LatencyStep::finish, call, stream);
  });
}

void GpuLatencyPass::read(Communicator& communicator, const std::int64_t* from,
                          std::span<std::int64_t> to) const {
  const Communicator::Reading reading{to.data(), from, to.size_bytes()};
  communicator.read({&reading, 1}, stream_);
}

const std::vector<std::int64_t>& GpuLatencyPass::expertBegins(Communicator& communicator) {
  read(communicator, rows_.begins, begins_);
  return begins_;
}

void GpuLatencyPass::rankCounts(Communicator& communicator, std::int64_t* counts) const {
  read(communicator, rows_.counts,
       {counts,
        static_cast<std::size_t>(rows_.localExperts) * static_cast<std::size_t>(rows_.ranks)});
}

std::vector<std::int64_t> GpuLatencyPass::loads(Communicator& communicator) const {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(rows_.experts) + 1);
  read(communicator, rows_.loads, loads);
  return loads;
}

void GpuLatencyPass::forgetLoads(Communicator& communicator) {
  launch(communicator, beginName_, 0, stream_, [&](NcclLanes& lanes) {
    lanes.gpu().clear(reinterpret_cast<std::byte*>(rows_.loads),
                      bytesOf(rows_.experts + 1, sizeof(std::int64_t)), stream_);
  });
}

}  // namespace moeccl

// SAA (Parm III-D), combine without duplicates and MP-all-gather at the same time:
//
//   lanes 0, 1:  combine of chunk 0   combine of chunk 1     combine of chunk 2   ...
//   lane 2:                           all-gather of chunk 0  all-gather of chunk 1   ...
//
// Sums are taken before the all-gather: to gather the shards' partial sums would cost esp times the
// bytes. A chunk's messages leave when those of the chunk before the last have left, so that chunks
// arrive one after another. All chunks do the same as the first, on other pieces. Messages `chunks`
// times those of combine, and (mp - 1) for each all-gather.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "algorithms/combineallgather/steps.h"

namespace moeccl::combineallgather {

constexpr int kGather = 2;  // a lane
// The most runs of blocks in the lists of a chunk's all-gather: 4 MB.
constexpr std::size_t kMostRuns = 1 << 18;

void gatherTokens(PlanBuilder& plan, const ExpertExchange& exchange, const Grid& grid, int rank,
                  PieceRange range, At at, const std::vector<OpRange>& summed) {
  BlockList first;  // of slot 0
  for (int position = 0; position < grid.ep; ++position)
    first.append(exchange.tokens(Buffer::output, position, 0, range));
  if (const std::size_t runs = 2 * static_cast<std::size_t>(grid.mp - 1) * first.runs().size();
      runs > kMostRuns)
    throw NotOffered("to gather slices of tokens among " + std::to_string(grid.mp) +
                     " ranks takes " + std::to_string(runs) + " runs of blocks; at most " +
                     std::to_string(kMostRuns) + " are planned");
  const auto allTokens = [&](int slot) {
    const std::int32_t behind =
        exchange.tokens(Buffer::output, 0, slot, range).runs()[0].first - first.runs()[0].first;
    BlockList list;
    for (Blocks run : first.runs()) {
      run.first += behind;
      list.append(run);
    }
    return list;
  };
  const int group = grid.mpGroupOf(rank), index = grid.mpIndexOf(rank);
  for (int i = 1; i < grid.mp; ++i) {
    const int slot = (index - i + grid.mp) % grid.mp;
    plan.recv(at, grid.mpRank(group, slot), allTokens(slot));
  }
  for (int i = 1; i < grid.mp; ++i)
    plan.send(at, grid.mpRank(group, (index + i) % grid.mp), allTokens(index), summed);
}

namespace {

// What the first chunk has of a plan.
struct Chunk {
  std::size_t ops, blocks, scratch;
};

// Chunk `chunk` does what the first does, on the pieces and in the steps behind it. What it sends
// before it gathers waits for `before`.
void append(Plan& plan, const Chunk& first, int chunk, int slices, int steps, OpRange before) {
  const auto ops = static_cast<std::int32_t>(plan.ops.size()),
             blocks = static_cast<std::int32_t>(plan.blockPool.size()),
             held = static_cast<std::int32_t>(plan.scratch.size());
  for (std::size_t i = 0; i < first.blocks; ++i) {
    Blocks run = plan.blockPool[i];
    run.first += run.buffer == Buffer::scratch ? held : chunk * slices;
    plan.blockPool.push_back(run);
  }
  for (std::size_t i = 0; i < first.scratch; ++i)
    plan.scratch.push_back({plan.scratch[i].rank, plan.scratch[i].block + chunk * slices});
  for (std::size_t i = 0; i < first.ops; ++i) {
    Op op = plan.ops[i];
    const auto deps = static_cast<std::int32_t>(plan.depPool.size());
    for (std::int32_t d = op.deps.begin; d < op.deps.begin + op.deps.count; ++d) {
      const OpRange range = plan.depPool[static_cast<std::size_t>(d)];
      plan.depPool.push_back({range.first + ops, range.count});
    }
    if (op.kind == OpKind::send && op.lane != kGather && before.count > 0)
      plan.depPool.push_back(before);
    op.deps = {deps, static_cast<std::int32_t>(plan.depPool.size()) - deps};
    op.step += chunk * (op.lane == kGather ? 1 : steps);
    op.src.begin += blocks;
    op.dst.begin += blocks;
    plan.ops.push_back(op);
  }
}

}  // namespace

Plan inChunks(const Topology& topology, const Parameters& parameters, int rank, int chunks) {
  const Grid& grid = parameters.grid;
  const int slices = slicesOf(topology, grid), pieces = chunks * slices;
  const ExpertExchange exchange(topology, parameters, rank, grid.mp, pieces, true);
  PlanBuilder builder;
  builder.cut(pieces);
  builder.reserve(static_cast<std::size_t>(chunks) * exchange.messages());
  OpRange sent;
  const std::vector<OpRange> summed = exchange.combine(builder, {0, slices}, &sent);
  gatherTokens(builder, exchange, grid, rank, {0, slices}, {.lane = kGather}, summed);
  Plan plan = builder.build();
  const Chunk first{plan.ops.size(), plan.blockPool.size(), plan.scratch.size()};
  const auto times = static_cast<std::size_t>(chunks);
  plan.ops.reserve(times * first.ops);
  plan.blockPool.reserve(times * first.blocks);
  plan.depPool.reserve(times * (plan.depPool.size() + first.ops));
  plan.scratch.reserve(times * first.scratch);
  for (int chunk = 1; chunk < chunks; ++chunk) {
    append(plan, first, chunk, slices, exchange.steps(), chunk < 2 ? OpRange{0, 0} : sent);
    if (chunk >= 2) sent.first += static_cast<std::int32_t>(first.ops);
  }
  return plan;
}

Plan pipelined(const Topology& topology, const Parameters& parameters, int rank) {
  return inChunks(topology, parameters, rank, std::max(parameters.chunks, 1));
}

}  // namespace moeccl::combineallgather

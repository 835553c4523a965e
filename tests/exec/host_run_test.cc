// Plans on real memory: every algorithm with blocks of random sizes, and gaps between them that
// stay as they are; and tags.
#include "src/exec/host_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "algorithms/registry.h"
#include "tests/job.h"

namespace moeccl {
namespace {

using RankFunction = std::function<void(Transport&)>;

void runRanks(int ranks, const RankFunction& function) {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Transport::Address> addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(makeLoopbackTransport(rank, ranks));
    addresses.push_back(transports.back()->address());
  }
  test::asThreads(ranks, [&](int rank) {
    transports[rank]->connect(addresses);
    function(*transports[rank]);
    transports[rank]->close(false, 60000);
  });
}

void complete(Transport& transport, HostRun& run) {
  while (!run.idle())
    if (!transport.progress()) transport.wait(10);
}

// Sizes of payloads, the same on every rank: what alltoallv's counts would say. Contributions to
// one sum are equally large.
class Sizes {
 public:
  Sizes(const Contract& contract, unsigned seed)
      : contract_(contract), sums_(contract.expected(0, 0).size() > 1), seed_(seed) {}

  std::size_t of(Payload payload) const {
    const Payload name = contract_.identity(payload);
    std::seed_seq seeds{static_cast<int>(seed_), sums_ ? 0 : name.rank + 1, name.block};
    std::mt19937 random(seeds);
    return random() % 4 == 0 ? 0 : random() % 300;
  }

 private:
  const Contract contract_;
  const bool sums_;
  const unsigned seed_;
};

// A buffer of blocks of given sizes, with gaps between them that nobody may write.
struct Spread {
  std::vector<Extent> extents;
  std::vector<std::byte> memory;
  static constexpr std::byte kPoison{0xa5};

  void add(std::size_t bytes) {
    const std::size_t gap = extents.size() % 3;
    extents.push_back({memory.size() + gap, bytes});
    memory.resize(memory.size() + gap + bytes, kPoison);
  }
  std::byte* at(std::size_t block) { return memory.data() + extents[block].offset; }
  // As the plan knows them.
  std::vector<Extent> cut(int pieces) const {
    std::vector<Extent> all;
    for (const Extent& extent : extents)
      for (int i = 0; i < pieces; ++i) all.push_back(pieceOf(extent, i, pieces, 1));
    return all;
  }
};

std::byte byteOf(Payload payload, std::size_t at) {
  return static_cast<std::byte>(payload.rank * 31 + payload.block * 7 + static_cast<int>(at) * 13 +
                                1);
}

void runWithRandomExtents(const Algorithm& algorithm, const Topology& topology, unsigned seed) {
  Parameters parameters;
  if (needsGrid(algorithm.collective)) {
    const int ranks = topology.ranks();
    const int esp = ranks % 2 == 0 ? 2 : ranks % 3 == 0 ? 3 : 1;
    parameters.grid = {ranks % 3 == 0 ? 3 : 1, ranks / esp, esp, seed % 2 == 0};
    parameters.experts = 1 + static_cast<int>(seed);
  }
  if (hasRoot(algorithm.collective)) parameters.root = topology.ranks() / 2;
  const Contract contract{algorithm.collective, topology.ranks(), parameters.grid,
                          parameters.experts, parameters.root};
  const Sizes sizes(contract, seed);
  runRanks(topology.ranks(), [&](Transport& transport) {
    const int rank = transport.rank();
    auto plan = std::make_shared<PreparedPlan>(algorithm.plan(topology, parameters, rank));
    const int pieces = plan->plan().pieces;
    HostRun run(plan);
    std::vector<int> ranks(topology.ranks());
    std::iota(ranks.begin(), ranks.end(), 0);
    for (std::uint32_t call = 0; call < 3; ++call) {
      Spread in, out;
      for (int block = 0; block < contract.inputBlocks(rank); ++block) {
        in.add(sizes.of({rank, block}));
        for (std::size_t at = 0; at < in.extents.back().bytes; ++at)
          in.at(block)[at] = byteOf(contract.identity({rank, block}), at);
      }
      for (int block = 0; block < contract.outputBlocks(rank); ++block)
        out.add(sizes.of(contract.expected(rank, block)[0]));
      std::vector<Extent> scratch;
      std::size_t scratchBytes = 0;
      for (Payload payload : plan->plan().scratch) {
        const Extent whole{0, sizes.of({payload.rank, payload.block / pieces})};
        scratch.push_back({scratchBytes, pieceOf(whole, payload.block % pieces, pieces, 1).bytes});
        scratchBytes += scratch.back().bytes;
      }
      const std::vector<Extent> inPieces = in.cut(pieces), outPieces = out.cut(pieces);
      Operands operands;
      operands.input = in.memory.data();
      operands.output = out.memory.data();
      operands.inputExtents = Extents::table(inPieces);
      operands.outputExtents = Extents::table(outPieces);
      operands.scratchExtents = Extents::table(scratch);
      operands.scratchBytes = scratchBytes;
      Route route{&transport, ranks, {}};
      route.tag.call = call;
      route.tag.source = static_cast<std::uint32_t>(rank);
      const std::vector<std::byte> before = out.memory;
      run.start(route, operands);
      complete(transport, run);
      ASSERT_FALSE(run.failed());
      ASSERT_EQ(run.unfinished(), 0);
      std::vector<std::byte> expected = before;
      for (int block = 0; block < contract.outputBlocks(rank); ++block)
        for (std::size_t at = 0; at < out.extents[block].bytes; ++at) {
          unsigned sum = 0;
          for (Payload payload : contract.expected(rank, block))
            sum += static_cast<unsigned>(byteOf(payload, at));
          expected[out.extents[block].offset + at] = static_cast<std::byte>(sum);
        }
      ASSERT_EQ(out.memory, expected) << algorithm.name << " rank " << rank;
    }
  });
}

// A message that nobody has taken is none of a call that has the same place in tags later.
TEST(Tags, CallsOfOneNumberDiffer) {
  constexpr std::uint32_t kLater = 1u << kCallBits;
  constexpr std::uint32_t kNumbers = 1u << (kPartBits + kLaneBits + kSequenceBits);
  for (std::uint32_t call : {0u, 7u, 100 * kLater + 511})
    for (std::uint32_t turns : {1u, 2u, 511u}) {
      const Tag one = makeTag({.call = call, .digest = 0xabcdef}),
                other = makeTag({.call = call + turns * kLater, .digest = 0xabcdef});
      EXPECT_EQ(callOf(one), callOf(other));
      // Whichever messages of the two.
      EXPECT_GE((one ^ other) >> kSourceBits, kNumbers);
    }
}

TEST(HostRun, EveryAlgorithmWithRandomExtents) {
  const std::vector<std::vector<int>> nodes = {{1},       {3},       {2, 2}, {1, 4, 2},
                                               {3, 3, 3}, {1, 1, 1}, {5, 1}};
  for (const Algorithm& algorithm : algorithms())
    for (const std::vector<int>& sizes : nodes)
      for (unsigned seed = 0; seed < 3; ++seed) {
        runWithRandomExtents(algorithm, Topology::uneven(sizes), seed);
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace moeccl

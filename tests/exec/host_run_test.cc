// Plans on real memory: every algorithm with uniform and with random extents, reductions by
// hand-made plans, and what travels between nodes, counted at the transport.
#include "src/exec/host_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>

#include "algorithms/registry.h"
#include "kernels/reduce.h"
#include "tests/job.h"

namespace moeccl {
namespace {

// Counts what passes through it.
class CountingTransport : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner)
      : inner_(std::move(inner)), messages_(inner_->ranks()), bytes_(inner_->ranks()) {}

  std::int64_t messagesTo(int peer) const { return messages_[peer]; }
  std::size_t bytesTo(int peer) const { return bytes_[peer]; }

  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  std::string name() const override { return inner_->name(); }
  Address address() override { return inner_->address(); }
  void connect(std::span<const Address> all) override { inner_->connect(all); }
  void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) override {
    ++messages_[peer];
    bytes_[peer] += bytes;
    inner_->send(peer, tag, data, bytes, transfer);
  }
  void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) override {
    inner_->recv(peer, tag, data, bytes, transfer);
  }
  void cancel(Transfer* transfer) override { inner_->cancel(transfer); }
  bool unexpected(Tag value, Tag mask, Tag* found) override {
    return inner_->unexpected(value, mask, found);
  }
  bool progress() override { return inner_->progress(); }
  void wait(int milliseconds) override { inner_->wait(milliseconds); }
  void wake() override { inner_->wake(); }
  void lose(int peer, const std::string& why) override { inner_->lose(peer, why); }
  bool close(bool abrupt, int milliseconds) override { return inner_->close(abrupt, milliseconds); }
  std::string lastError() const override { return inner_->lastError(); }

 private:
  std::unique_ptr<Transport> inner_;
  std::vector<std::int64_t> messages_;
  std::vector<std::size_t> bytes_;
};

using RankFunction = std::function<void(CountingTransport&)>;

void runRanks(int ranks, const RankFunction& function) {
  std::vector<std::unique_ptr<CountingTransport>> transports;
  std::vector<Transport::Address> addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<CountingTransport>(makeLoopbackTransport(rank, ranks)));
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
  runRanks(topology.ranks(), [&](CountingTransport& transport) {
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

// What crosses between nodes with 4 nodes of 4 ranks, as the design promises: every rank sends one
// message to each other node instead of one to each rank there, and the same bytes.
TEST(HostRun, HierarchicalSendsOneMessagePerNode) {
  const Topology topology = Topology::even(4, 4);
  struct Count {
    std::int64_t messages = 0;
    std::size_t bytes = 0;
  };
  const auto countBetweenNodes = [&](std::string_view name) {
    const Algorithm& algorithm = *findAlgorithm(Collective::allToAll, name);
    Count total;
    std::mutex mutex;
    runRanks(16, [&](CountingTransport& transport) {
      const int rank = transport.rank();
      HostRun run(std::make_shared<PreparedPlan>(algorithm.plan(topology, Parameters{}, rank)));
      std::vector<int> ranks(16);
      std::iota(ranks.begin(), ranks.end(), 0);
      std::vector<std::byte> in(16 * 64), out(16 * 64);
      Operands operands;
      operands.input = in.data();
      operands.output = out.data();
      operands.inputExtents = operands.outputExtents = operands.scratchExtents =
          Extents::uniform(64);
      operands.scratchBytes = 64 * run.prepared().plan().scratch.size();
      Route route{&transport, ranks, {}};
      route.tag.source = static_cast<std::uint32_t>(rank);
      run.start(route, operands);
      complete(transport, run);
      const std::lock_guard lock(mutex);
      std::int64_t mine = 0;
      for (int peer = 0; peer < 16; ++peer)
        if (topology.nodeOf(peer) != topology.nodeOf(rank)) {
          mine += transport.messagesTo(peer);
          total.bytes += transport.bytesTo(peer);
        }
      total.messages += mine;
      EXPECT_EQ(mine, name == "hierarchical" ? topology.nodes() - 1 : 12) << "rank " << rank;
    });
    return total;
  };
  const Count linear = countBetweenNodes("linear");
  const Count hierarchical = countBetweenNodes("hierarchical");
  EXPECT_EQ(linear.messages, 16 * 12);
  EXPECT_EQ(hierarchical.messages, 16 * 3);
  EXPECT_EQ(linear.bytes, 16u * 12 * 64);
  EXPECT_EQ(hierarchical.bytes, linear.bytes);
}

// Rank 0 gathers one block of every rank and adds them up in rank order.
Plan sumAtRankZero(int ranks, int rank) {
  PlanBuilder plan;
  if (rank != 0) {
    plan.send({}, 0, input(0));
    return plan.build();
  }
  BlockList all = input(0);
  const int first = plan.opCount();
  for (int from = 1; from < ranks; ++from) {
    const int block = plan.scratch({from, 0});
    plan.recv({}, from, scratch(block));
    all.append(scratch(block));
  }
  plan.reduce({.step = 1}, all, output(0), {plan.since(first)});
  return plan.build();
}

template <typename T>
void sumsTo(moecclDataType_t type, const std::vector<T>& terms, T expected) {
  const int ranks = static_cast<int>(terms.size());
  constexpr std::size_t kCount = 37;
  runRanks(ranks, [&](CountingTransport& transport) {
    const int rank = transport.rank();
    HostRun run(std::make_shared<PreparedPlan>(sumAtRankZero(ranks, rank)));
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    std::vector<T> in(kCount, terms[rank]), out(kCount);
    Operands operands;
    operands.input = reinterpret_cast<const std::byte*>(in.data());
    operands.output = reinterpret_cast<std::byte*>(out.data());
    operands.inputExtents = operands.outputExtents = operands.scratchExtents =
        Extents::uniform(kCount * sizeof(T));
    operands.scratchBytes = kCount * sizeof(T) * run.prepared().plan().scratch.size();
    operands.datatype = type;
    Route route{&transport, all, {}};
    route.tag.source = static_cast<std::uint32_t>(rank);
    run.start(route, operands);
    complete(transport, run);
    ASSERT_FALSE(run.failed());
    EXPECT_EQ(out, std::vector<T>(kCount, rank == 0 ? expected : T{}));
  });
}

TEST(HostRun, Reduces) {
  sumsTo<float>(moecclFloat32, {1e8f, 1.0f, -1e8f}, 0.0f);  // in rank order: 1 is lost
  sumsTo<float>(moecclFloat32, {1e8f, -1e8f, 1.0f}, 1.0f);
  sumsTo<double>(moecclFloat64, {0.5, 0.25, 4}, 4.75);
  sumsTo<std::int8_t>(moecclInt8, {127, 1}, -128);
  sumsTo<std::uint64_t>(moecclUint64, {~0ull, 2}, 1);
  // 1024 + 0.5 + 0.5 in float16, whose spacing there is 1: float32 accumulation keeps the halves.
  sumsTo<std::uint16_t>(moecclFloat16, {0x6400, 0x3800, 0x3800}, 0x6401);
  // 256 + 0.75 + 0.75 in bfloat16, whose spacing there is 2.
  sumsTo<std::uint16_t>(moecclBfloat16, {0x4380, 0x3f40, 0x3f40}, 0x4381);
}

// A message of another size than the receiver expects ends the run and says who sent what.
TEST(HostRun, NoticesAnotherSize) {
  for (const auto& [sent, expected] : std::vector<std::pair<std::size_t, std::size_t>>{
           {8, 16}, {16, 8}, {0, 4}, {4, 0}, {1 << 20, 8}})
    runRanks(2, [&, sent = sent, expected = expected](CountingTransport& transport) {
      const int rank = transport.rank();
      HostRun run(std::make_shared<PreparedPlan>(sumAtRankZero(2, rank)));
      const std::vector<int> ranks = {0, 1};
      const std::size_t bytes = rank == 0 ? expected : sent;
      std::vector<std::byte> in(bytes), out(bytes);
      Operands operands;
      operands.input = in.data();
      operands.output = out.data();
      operands.inputExtents = operands.outputExtents = operands.scratchExtents =
          Extents::uniform(bytes);
      operands.scratchBytes = bytes;
      Route route{&transport, ranks, {}};
      route.tag.source = static_cast<std::uint32_t>(rank);
      run.start(route, operands);
      complete(transport, run);
      if (rank == 0) {
        EXPECT_TRUE(run.failed());
        EXPECT_EQ(run.failure().peer, 1);
        EXPECT_EQ(run.failure().expected, expected);
        EXPECT_EQ(run.failure().arrived, sent);
        EXPECT_EQ(run.failure().status,
                  sent > expected ? TransferStatus::truncated : TransferStatus::ok);
      }
    });
}

}  // namespace
}  // namespace moeccl

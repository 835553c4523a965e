// What runs of plans ask of GPUs and NCCL, with doubles for both, and what the doubles find fault
// with. That every algorithm delivers on them is for tests/api/gpu_test.cc.
#include "src/exec/nccl_run.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "src/base/error.h"
#include "src/comm/operands.h"
#include "src/exec/row_memory.h"
#include "tests/exec/gpu_double.h"
#include "tests/plans/support.h"

namespace moeccl::test {
namespace {

using ::moeccl::testing::contractOf;
using ::moeccl::testing::plansOf;

constexpr std::int32_t kPoison = -77777;

// Small numbers, of which no two neighbours are alike; what has the same identity has the same
// ones.
std::int32_t element(const Contract& contract, Payload payload, std::size_t index) {
  const Payload name = contract.identity(payload);
  return static_cast<std::int32_t>(name.rank * 1009 + name.block * 101 +
                                   static_cast<int>(index % 97));
}

// One rank: its device, its run and its buffers of int32.
struct Rank {
  std::shared_ptr<GpuDouble> gpu;
  std::unique_ptr<NcclLanes> lanes;
  std::unique_ptr<NcclRun> run;
  Gpu::Stream stream = nullptr;
  std::vector<std::int32_t> input, output, expected;
  std::vector<Extent> scratch;
  Call call = {CollectiveCall{}};

  CollectiveCall& collective() { return std::get<CollectiveCall>(call.what); }
};

class Machine {
 public:
  Machine(const Algorithm& algorithm, const Topology& topology, const Parameters& parameters,
          const GpuWorld::Options& options, std::size_t count)
      : contract_(contractOf(algorithm.collective, topology, parameters)),
        count_(count),
        world_(options) {
    const auto plans = plansOf(algorithm, topology, parameters);
    Gpu::Id id{};
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      Rank& it = ranks_.emplace_back();
      it.gpu = world_.newGpu();
      if (rank == 0) id = it.gpu->newId();
      it.lanes = std::make_unique<NcclLanes>(it.gpu, it.gpu->join(id, topology.ranks(), rank, -1),
                                             -1, true);
      it.run = std::make_unique<NcclRun>(std::make_shared<PreparedPlan>((*plans)[rank]));
      it.stream = it.gpu->newStream(false);
      it.collective() = {{nullptr, nullptr, count * 4, moecclInt32},
                         algorithm.collective,
                         {&algorithm, parameters}};
      fill(rank);
    }
  }
  ~Machine() {
    for (Rank& rank : ranks_) rank.lanes->destroy();
  }

  GpuWorld& world() { return world_; }
  std::vector<Rank>& ranks() { return ranks_; }

  void enqueue(int rank) {
    Rank& it = ranks_[rank];
    it.run->enqueue(*it.lanes, operandsOf(it.call, it.run->prepared().plan(), nullptr, &it.scratch),
                    it.stream);
  }
  void enqueueAll() {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) enqueue(rank);
  }
  // What is wrong; "" for nothing.
  std::string verdict() {
    world_.run();
    if (const std::string stuck = world_.stuck(); !stuck.empty()) return "stuck:\n" + stuck;
    if (const std::string problems = world_.problems(); !problems.empty()) return problems;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].output != ranks_[rank].expected)
        return "rank " + std::to_string(rank) + " has other data than expected";
    return "";
  }

 private:
  void fill(int rank) {
    Rank& it = ranks_[static_cast<std::size_t>(rank)];
    for (int block = 0; block < contract_.inputBlocks(rank); ++block) {
      const Payload payload{rank, block};
      for (std::size_t i = 0; i < count_; ++i) it.input.push_back(element(contract_, payload, i));
    }
    for (int block = 0; block < contract_.outputBlocks(rank); ++block) {
      const std::vector<Payload> terms = contract_.expected(rank, block);
      for (std::size_t i = 0; i < count_; ++i) {
        std::int32_t sum = 0;
        for (Payload term : terms) sum += element(contract_, term, i);
        it.expected.push_back(sum);
      }
    }
    it.output.assign(it.expected.size(), kPoison);
    it.collective().input = it.input.data();
    it.collective().output = it.output.data();
  }

  const Contract contract_;
  const std::size_t count_;
  GpuWorld world_;
  std::vector<Rank> ranks_;
};

// ---- What is asked of a GPU ----

using Calls = std::vector<GpuCall>;
using Kind = GpuCall::Kind;

// The calls of rank 0's device of a kind that `match` is true of.
template <typename Match>
std::int64_t countOf(const Calls& calls, Kind kind, const Match& match) {
  return std::ranges::count_if(calls, [&](const GpuCall& call) {
    return call.device == 0 && call.kind == kind && match(call);
  });
}
std::int64_t countOf(const Calls& calls, Kind kind) {
  return countOf(calls, kind, [](const GpuCall&) { return true; });
}

TEST(NcclRun, OneLaneIsTheCallersStreamAndAStepOneGroup) {
  Machine machine(*findAlgorithm(Collective::allToAll, "pairwise"), Topology::uneven({{3}}), {}, {},
                  4);
  machine.enqueue(0);
  // The caller's own stream, made by the test; a copy of its own block; a group for each other
  // rank.
  const Calls calls = machine.world().calls();
  const auto isUrgent = [](const GpuCall& call) { return call.urgent; };
  EXPECT_EQ(countOf(calls, Kind::newStream), 1);
  EXPECT_EQ(countOf(calls, Kind::newStream, isUrgent), 0);
  EXPECT_EQ(countOf(calls, Kind::copy), 1);
  EXPECT_EQ(countOf(calls, Kind::copy, [](const GpuCall& call) { return call.runs == 1; }), 1);
  EXPECT_EQ(countOf(calls, Kind::groupStart), 2);
  const auto isToRank1 = [](const GpuCall& call) { return call.peer == 1 && call.bytes == 16; };
  EXPECT_EQ(countOf(calls, Kind::send, isToRank1), 1);
  machine.enqueue(1);
  machine.enqueue(2);
  EXPECT_EQ(machine.verdict(), "");
}

TEST(NcclRun, LanesThatOthersWaitForAreUrgent) {
  Parameters parameters;
  parameters.grid = {2, 2, 2, true};
  parameters.chunks = 3;
  Machine machine(*findAlgorithm(Collective::combineAllGather, "pipelined"),
                  Topology::uneven({{2, 2}}), parameters, {}, 12);
  machine.enqueueAll();
  const Calls calls = machine.world().calls();
  // Those of the all-gather, for which nobody waits, are the three to the other rank of the MP
  // group.
  const std::int64_t urgent =
      countOf(calls, Kind::send, [](const GpuCall& call) { return call.urgent; });
  EXPECT_GT(urgent, 3);
  EXPECT_EQ(countOf(calls, Kind::send), urgent + 3);
  EXPECT_EQ(countOf(calls, Kind::split), 3);
  EXPECT_EQ(machine.verdict(), "");
}

// Groups of sends on the streams of rank 0's device, in the order in which it was asked for them,
// and which of them the streams and events order.
class Order {
 public:
  struct Group {
    std::size_t stream;
    std::set<std::size_t> after;  // groups
  };

  explicit Order(const Calls& calls) {
    std::map<std::size_t, std::set<std::size_t>> streams;
    std::map<std::pair<const void*, int>, std::set<std::size_t>> events;
    for (const GpuCall& call : calls) {
      if (call.device != 0) continue;
      std::set<std::size_t>& known = streams[call.stream];
      if (call.kind == Kind::record) {
        events[call.event] = known;
      } else if (call.kind == Kind::wait) {
        known.merge(std::set(events[call.event]));
      } else if (call.kind == Kind::sends) {
        Group group{call.stream, known};
        known.insert(groups.size());
        groups.push_back(std::move(group));
      }
    }
  }
  bool ordered(std::size_t one, std::size_t other) const {
    return groups[one].after.contains(other) || groups[other].after.contains(one);
  }

  std::vector<Group> groups;
};

// SAA: while one slice is gathered the next is combined, so nothing may order the two.
TEST(NcclRun, GathersASliceBesideTheCombineOfTheNext) {
  constexpr int kChunks = 4;
  Parameters parameters;
  parameters.grid = {2, 2, 2, true};
  parameters.chunks = kChunks;
  const auto orderOf = [&](const char* algorithm) {
    Machine machine(*findAlgorithm(Collective::combineAllGather, algorithm),
                    Topology::uneven({{2, 2}}), parameters, {}, 24);
    machine.enqueueAll();
    EXPECT_EQ(machine.verdict(), "");
    return Order(machine.world().calls());
  };
  // Gathers are what is on the stream that ends with one.
  const auto gathersOf = [](const Order& order) {
    std::vector<std::size_t> gathers;
    for (std::size_t i = 0; i < order.groups.size(); ++i)
      if (order.groups[i].stream == order.groups.back().stream) gathers.push_back(i);
    return gathers;
  };
  const Order order = orderOf("pipelined");
  const std::vector<std::size_t> gathers = gathersOf(order);
  ASSERT_EQ(gathers.size(), kChunks);
  for (int chunk = 0; chunk + 1 < kChunks; ++chunk) {
    const std::set<std::size_t>& before = order.groups[gathers[chunk]].after;
    int combines = 0;
    for (const std::size_t combine : order.groups[gathers[chunk + 1]].after) {
      if (before.contains(combine) || order.groups[combine].stream == order.groups.back().stream)
        continue;
      ++combines;
      EXPECT_FALSE(order.ordered(combine, gathers[chunk])) << "chunk " << chunk;
    }
    EXPECT_GT(combines, 0) << "chunk " << chunk;
  }
  // One after the other there is nothing beside.
  const Order sequential = orderOf("sequential");
  for (std::size_t i = 0; i + 1 < sequential.groups.size(); ++i)
    EXPECT_TRUE(sequential.ordered(i, sequential.groups.size() - 1));
}

// The receiver's blocks do not follow one another. Small ones travel together, and are unpacked.
TEST(NcclRun, LargeBlocksOfAMessageTravelAlone) {
  Parameters parameters;
  parameters.grid = {1, 4, 1, true};
  parameters.experts = 2;
  const auto callsOf = [&](std::size_t count) {
    Machine machine(*findAlgorithm(Collective::dispatch, "flat"), Topology::uneven({{4}}),
                    parameters, {}, count);
    machine.enqueueAll();
    EXPECT_EQ(machine.verdict(), "");
    return machine.world().calls();
  };
  const auto ofBytes = [](const Calls& calls, Kind kind, std::size_t bytes) {
    return countOf(calls, kind, [&](const GpuCall& call) { return call.bytes == bytes; });
  };
  const std::size_t large = (std::size_t{256} << 10) / 4;
  const Calls apart = callsOf(large), together = callsOf(large - 1);
  EXPECT_EQ(ofBytes(apart, Kind::send, 262144), 3 * 2);
  EXPECT_EQ(ofBytes(apart, Kind::receive, 262144), 3 * 2);
  EXPECT_EQ(countOf(apart, Kind::copy), 1);  // the rank's own blocks
  EXPECT_EQ(ofBytes(together, Kind::send, 524280), 3);
  EXPECT_EQ(countOf(together, Kind::copy), 2);
}

TEST(NcclRun, CallsOnSeveralStreamsShareTheArena) {
  for (unsigned seed = 1; seed < 20; ++seed) {
    Machine machine(*findAlgorithm(Collective::allToAll, "hierarchical"),
                    Topology::uneven({{2, 2}}), {}, {seed}, 5);
    for (int turn = 0; turn < 3; ++turn) {
      machine.enqueueAll();
      for (Rank& rank : machine.ranks()) rank.stream = rank.gpu->newStream(false);
    }
    ASSERT_EQ(machine.verdict(), "");
  }
}

// ---- The double must be able to find fault ----

struct Pair {
  GpuWorld world;
  std::shared_ptr<GpuDouble> a, b;
  Gpu::Comm rootA, rootB, commA, commB;
  std::byte from[8] = {}, to[8] = {};

  explicit Pair(const GpuWorld::Options& options = {})
      : world(options), a(world.newGpu()), b(world.newGpu()) {
    const Gpu::Id id = a->newId();
    rootA = a->join(id, 2, 0, -1);
    rootB = b->join(id, 2, 1, -1);
    commA = a->split(rootA, 0, 0, Gpu::Purpose::messages, -1);
    commB = b->split(rootB, 0, 1, Gpu::Purpose::messages, -1);
  }
  void send(std::size_t bytes, Gpu::Comm comm, Gpu::Stream stream) {
    a->groupStart();
    a->send(from, bytes, 1, comm, stream);
    a->groupEnd(comm, -1);
  }
  void recv(std::byte* at, std::size_t bytes, Gpu::Comm comm, Gpu::Stream stream) {
    b->groupStart();
    b->recv(at, bytes, 0, comm, stream);
    b->groupEnd(comm, -1);
  }
};

TEST(GpuDouble, SeesMessagesThatDoNotMeet) {
  Pair lone;
  lone.recv(lone.to, 8, lone.commB, nullptr);
  lone.world.run();
  EXPECT_NE(lone.world.stuck().find("receive of 8 bytes from 0"), std::string::npos);
  Pair pair;
  pair.send(4, pair.commA, nullptr);
  pair.recv(pair.to, 8, pair.commB, nullptr);
  EXPECT_NE(pair.world.problems().find("meet a message of 4"), std::string::npos);
}

TEST(GpuDouble, SeesOrdersThatDeadlock) {
  for (const bool oneQueue : {false, true}) {
    Pair pair({.seed = 1, .oneQueue = oneQueue});
    const Gpu::Comm otherA = pair.a->split(pair.rootA, 0, 0, Gpu::Purpose::messages, -1);
    const Gpu::Comm otherB = pair.b->split(pair.rootB, 0, 1, Gpu::Purpose::messages, -1);
    pair.send(8, pair.commA, pair.a->newStream(false));
    pair.send(8, otherA, pair.a->newStream(false));
    std::byte second[8];
    pair.recv(second, 8, otherB, pair.b->newStream(false));
    pair.recv(pair.to, 8, pair.commB, pair.b->newStream(false));
    pair.world.run();
    EXPECT_EQ(pair.world.stuck().empty(), !oneQueue);
  }
}

// NCCL would launch nothing before the outer one ends, and what is enqueued behind the inner one
// would come too early.
TEST(GpuDouble, SeesAGroupWithinAnother) {
  Pair pair;
  pair.a->groupStart();
  EXPECT_THROW(pair.send(8, pair.commA, nullptr), std::logic_error);
  EXPECT_NE(pair.world.problems().find("a send of 8 bytes to 1 in two"), std::string::npos);
}

TEST(GpuDouble, LetsOthersMeetWhenARankAborts) {
  GpuWorld world({});
  const std::shared_ptr<GpuDouble> gpus[] = {world.newGpu(), world.newGpu(), world.newGpu()};
  const Gpu::Id id = gpus[0]->newId();
  Gpu::Comm comms[3];
  for (int rank = 0; rank < 3; ++rank)
    comms[rank] =
        gpus[rank]->split(gpus[rank]->join(id, 3, rank, -1), 0, rank, Gpu::Purpose::messages, -1);
  std::byte from[8] = {}, to[8] = {}, never[8] = {};
  gpus[1]->groupStart();
  gpus[1]->send(from, 8, 2, comms[1], nullptr);
  gpus[1]->groupEnd(comms[1], -1);
  gpus[0]->abort({comms, 1});
  gpus[2]->groupStart();
  gpus[2]->recv(to, 8, 1, comms[2], nullptr);
  gpus[2]->groupEnd(comms[2], -1);
  world.run();
  EXPECT_EQ(world.stuck(), "");
  gpus[2]->groupStart();
  gpus[2]->recv(never, 8, 0, comms[2], nullptr);
  gpus[2]->groupEnd(comms[2], -1);
  world.run();
  EXPECT_NE(world.stuck().find("receive of 8 bytes from 0"), std::string::npos);
}

TEST(GpuDouble, SeesMissingEvents) {
  for (const bool ordered : {false, true}) {
    Pair pair;
    const Gpu::Stream first = pair.b->newStream(false), second = pair.b->newStream(false);
    pair.send(8, pair.commA, nullptr);
    pair.recv(pair.to, 8, pair.commB, first);
    if (ordered) {
      const Gpu::Event event = pair.b->newEvent();
      pair.b->record(event, first);
      pair.b->wait(second, event);
    }
    std::byte copy[8];
    pair.b->toHost(copy, pair.to, 8, second);
    pair.world.run();
    EXPECT_EQ(pair.world.problems().empty(), ordered) << pair.world.problems();
  }
}

TEST(GpuDouble, SeesWhatCapturesForbid) {
  Pair pair;
  const Gpu::Stream stream = pair.a->newStream(false), other = pair.a->newStream(false);
  const Gpu::Event before = pair.a->newEvent(), fork = pair.a->newEvent();
  pair.a->record(before, stream);
  pair.a->beginCapture(stream);
  EXPECT_THROW(pair.a->allocate(8), std::logic_error);
  EXPECT_THROW(pair.a->complete(before), std::logic_error);
  EXPECT_THROW(pair.a->wait(stream, before), std::logic_error);
  pair.a->record(fork, stream);
  pair.a->wait(other, fork);
  pair.a->endCapture(stream);
  EXPECT_NE(pair.world.problems().find("has not been joined"), std::string::npos);
}

// CUDA ends graphs in a thread that may wait for nothing, such as a lock of one that asks it for
// memory.
TEST(RowMemory, IsLetGoByGraphsWithoutAWait) {
  GpuWorld world({});
  const std::shared_ptr<GpuDouble> gpu = world.newGpu();
  const auto memory = std::make_shared<RowMemory>(gpu);
  std::shared_ptr<RowMemory::Piece> first = memory->take(64, true);
  const RowMemory::Piece* const known = first.get();
  const Gpu::Stream stream = gpu->newStream(false);
  gpu->beginCapture(stream);
  gpu->keepInGraph(stream, std::move(first));
  std::shared_ptr<GpuDouble::Graph> graph = gpu->endCapture(stream);
  std::future<void> ends;
  gpu->onAllocate([&] {
    ends = std::async(std::launch::async, [&] { graph.reset(); });
    EXPECT_EQ(ends.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  });
  const auto second = memory->take(64, true);
  EXPECT_NE(second.get(), known);
  ends.wait();
  EXPECT_EQ(memory->take(64, true).get(), known);
  memory->close();
  EXPECT_EQ(world.problems() + world.leftovers(), "");
}

// Who interrupts does not wait for what NCCL answers, and NCCL aborts nothing before it has.
TEST(NcclLanes, AreInterruptedWhileNcclIsAsked) {
  GpuWorld world({});
  const std::shared_ptr<GpuDouble> gpu = world.newGpu();
  const Gpu::Id id = gpu->newId();
  auto lanes = std::make_unique<NcclLanes>(gpu, gpu->join(id, 1, 0, -1), -1, true);
  std::future<void> ends;
  gpu->onAsyncError([&] {
    ends = std::async(std::launch::async, [&] { lanes->interrupt(); });
    EXPECT_EQ(ends.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  std::string text;
  EXPECT_EQ(lanes->asyncError(&text), moecclSuccess) << text;
  EXPECT_THROW(lanes->comm(0), Error);
  lanes.reset();
  EXPECT_EQ(world.problems(), "");
}

// Each sleep takes far longer than most waits. Where something else had the core for long, a wait
// is rightly followed by a sleep, so that one of many must do without.
TEST(NcclLanes, LookSeveralTimesBeforeTheySleep) {
  const auto sleeps = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  long fewest = std::numeric_limits<long>::max();
  for (int attempt = 0; attempt < 1000 && fewest > 0; ++attempt) {
    Machine machine(*findAlgorithm(Collective::allToAll, "linear"), Topology::uneven({{2}}), {}, {},
                    7);
    Rank& waiting = machine.ranks()[0];
    machine.enqueue(0);
    const int asked = waiting.lanes->lanes();  // in each look
    int questions = 0;
    long before = 0;
    const std::function<void()> look = [&] {
      if (questions == 0) before = sleeps();
      if (++questions <= 4 * asked) return waiting.gpu->onAsyncError(look);
      fewest = std::min(fewest, sleeps() - before);
      machine.enqueue(1);
    };
    waiting.gpu->onAsyncError(look);
    waiting.lanes->await("a test");
    EXPECT_GT(questions, 4 * asked);
    EXPECT_EQ(machine.verdict(), "");
  }
  EXPECT_EQ(fewest, 0);
}

TEST(GpuModels, AreJoinedByNvlinkOrNot) {
  for (const char* model :
       {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB", "NVIDIA H200",
        "NVIDIA B200", "NVIDIA GB200", "NVIDIA GH200 480GB", "NVIDIA H20"})
    EXPECT_TRUE(hasNvlink(model)) << model;
  for (const char* model :
       {"NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL",
        "NVIDIA GeForce RTX 2080 Ti", "NVIDIA L40S", "Tesla T4", "NVIDIA A10", ""})
    EXPECT_FALSE(hasNvlink(model)) << model;
}

}  // namespace
}  // namespace moeccl::test

// Routes on GPU communicators, with doubles for CUDA and NCCL: ranks are threads, each with a
// device of its own, on whose memory and streams everything lies. The doubles run what is queued
// late and in random order, and find fault with what nothing orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/api/schedule_pass.h"
#include "tests/exec/gpu_jobs.h"

namespace moeccl::test {
namespace {

constexpr Backend kGpus[] = {{"gpus", false, false}};

class GpuMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override { return myGpu().allocate(bytes); }
  void free(void* memory) noexcept override { myGpu().free(static_cast<std::byte*>(memory)); }
  void put(void* to, const void* from, size_t bytes, moecclStream_t stream) override {
    myGpu().toDevice(static_cast<std::byte*>(to), from, bytes, stream);
  }
  void get(void* to, const void* from, size_t bytes, moecclStream_t stream) override {
    if (bytes > 0) myGpu().toHost(to, static_cast<const std::byte*>(from), bytes, stream);
    myGpu().synchronize(stream);
  }
};

// Returns what the devices were asked for.
std::vector<GpuCall> onGpus(const Job& job, unsigned seed, const RankFunction& function) {
  GpusOfJobs gpus({.seed = seed, .oneQueue = seed % 5 == 0, .threads = true, .ownMemory = true});
  gpus.run(job, function);
  return gpus.world.calls();
}

std::vector<GpuCall> onGpus(const Case& c, unsigned seed, const RankFunction& function) {
  return onGpus(jobOf(c), seed, function);
}

class RoutesOnGpus : public testing::TestWithParam<Case> {};

TEST_P(RoutesOnGpus, AgainstPlainLoops) {
  const Case c = GetParam();
  const World world(c);
  Case fewer = c;
  fewer.tokens = c.tokens / 2;
  const World then(fewer);
  const auto seed = static_cast<unsigned>(c.experts * 31 + c.choices * 7 + c.ranks());
  onGpus(c, seed, [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    GpuMemory memory;
    const moecclStream_t stream = c.stream ? myGpu().newStream(false) : nullptr;
    for (const World* it : {&world, &then, &world})
      exercise(*it, comm, route.it, rank, memory, stream);
    if (stream != nullptr) myGpu().deleteStream(stream);
  });
}

INSTANTIATE_TEST_SUITE_P(Pairs, RoutesOnGpus, testing::ValuesIn(productCases(kGpus, true)),
                         nameOfRoute);

// Large enough for several chunks.
std::vector<Case> largeCases() {
  std::vector<Case> all;
  for (const char* algorithm : {"node", "rank", "flat"}) {
    Case c;
    c.backend = &kGpus[0];
    c.nodes = {2, 1};
    c.experts = 5;
    c.choices = 3;
    c.algorithm = algorithm;
    c.tokens = 30;
    c.hidden = 4096;
    all.push_back(c);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Wide, RoutesOnGpus, testing::ValuesIn(largeCases()), nameOfRoute);

Case smallCase() {
  Case c;
  c.backend = &kGpus[0];
  c.nodes = {2, 2};
  c.experts = 7;
  c.choices = 3;
  c.hidden = 8;
  c.algorithm = "node";
  return c;
}

// Tokens whose rows come back from experts that do nothing, in the memory of a device.
struct Echo {
  Echo(const World& world, int rank, Memory& memory, moecclStream_t stream)
      : tokens(world.tokens(rank)),
        hidden(world.c.hidden),
        input(memory, stream, values(world, rank)),
        output(memory, stream, std::vector<float>(values(world, rank).size(), -1)) {
    for (int token = 0; token < tokens; ++token) {
      float sum = 0;
      for (int choice = 0; choice < world.c.choices; ++choice)
        if (world.experts[rank][token * world.c.choices + choice] >= 0)
          sum += world.weight({rank, token, choice});
      sums.push_back(sum);
    }
  }
  static std::vector<float> values(const World& world, int rank) {
    std::vector<float> all;
    for (int token = 0; token < world.tokens(rank); ++token)
      for (int64_t i = 0; i < world.c.hidden; ++i) all.push_back(small(rank, token, i));
    return all;
  }
  // After Dispatch and Combine of it.
  void requireSums(int rank) const { requireSums(*this, rank); }
  // After those of the same tokens with the choices of another.
  void requireSums(const Echo& other, int rank) const {
    const Bytes got = output.get();
    for (int token = 0; token < tokens; ++token)
      for (int64_t i = 0; i < hidden; ++i) {
        float value = 0;
        std::memcpy(&value, &got[static_cast<size_t>(token * hidden + i) * sizeof value],
                    sizeof value);
        checkThat(value == other.sums[token] * small(rank, token, i), "another sum");
      }
  }

  const int tokens;
  const int64_t hidden;
  const Buffer input, output;
  std::vector<float> sums;
};

std::unique_ptr<Pass> passOf(moecclRoute_t route, const World& world, moecclComm_t comm, int rank,
                             Memory& memory, moecclStream_t stream) {
  const Buffer chosen(memory, stream, world.experts[rank]),
      weights(memory, stream, world.weights(rank));
  return std::make_unique<Pass>(comm, route, world.tokens(rank), chosen.at<int32_t>(),
                                weights.at<float>(), stream);
}

std::vector<float> roomFor(const Pass& pass, const Case& c) {
  return std::vector<float>(static_cast<size_t>(pass.rows().rows * c.hidden));
}

// What is queued keeps its routing, whatever begins meanwhile with the memory of its pass, and
// lists are not written over while they are needed.
TEST(RoutesOfGpus, KeepTheRoutingThatTheyWereCalledWith) {
  const Case c = smallCase();
  const World world(c);
  Case other = c;
  other.style = Style::hot;
  const World hot(other);
  for (unsigned seed = 1; seed <= 4; ++seed)
    onGpus(c, seed, [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      const Route route(grid.it, c);
      GpuMemory memory;
      const moecclStream_t streams[] = {myGpu().newStream(false), myGpu().newStream(false)};
      for (int step = 0; step < 4; ++step) {
        std::vector<std::unique_ptr<Echo>> echoes;
        std::vector<std::unique_ptr<Buffer>> rows;
        std::vector<std::unique_ptr<Pass>> passes;
        for (int i = 0; i < 2; ++i) {
          const World& it = (step + i) % 2 == 0 ? world : hot;
          passes.push_back(passOf(route.it, it, comm, rank, memory, streams[i]));
          echoes.push_back(std::make_unique<Echo>(it, rank, memory, streams[i]));
          rows.push_back(std::make_unique<Buffer>(memory, streams[i], roomFor(*passes[i], c)));
        }
        for (int i = 0; i < 2; ++i) {
          check(moecclPassDispatch(passes[i]->it, echoes[i]->input.at(), rows[i]->at(), streams[i]),
                comm);
          check(moecclPassCombine(passes[i]->it, rows[i]->at(), echoes[i]->output.at(), streams[i]),
                comm);
        }
        passes.pop_back();
        const Pass next(comm, route.it, 0, nullptr, nullptr, nullptr);
        for (int i = 0; i < 2; ++i) echoes[i]->requireSums(rank);
      }
      for (const moecclStream_t stream : streams) myGpu().deleteStream(stream);
    });
}

// A pass keeps its layout: a dispatch again sends its rows, and nothing else.
TEST(RoutesOfGpus, TellNothingAgain) {
  const auto bytesOf = [](int dispatches) {
    Case c = smallCase();
    c.algorithm = "flat";
    const World world(c);
    std::size_t bytes = 0;
    for (const GpuCall& call : onGpus(c, 1, [&](moecclComm_t comm, int rank) {
           const Grid grid(comm, world);
           const Route route(grid.it, c);
           GpuMemory memory;
           const auto pass = passOf(route.it, world, comm, rank, memory, nullptr);
           const Echo echo(world, rank, memory, nullptr);
           const Buffer rows(memory, nullptr, roomFor(*pass, c));
           for (int i = 0; i < dispatches; ++i)
             check(moecclPassDispatch(pass->it, echo.input.at(), rows.at(), nullptr), comm);
           myGpu().synchronize(nullptr);
         }))
      if (call.kind == GpuCall::Kind::send) bytes += call.bytes;
    return bytes;
  };
  const Case c = smallCase();
  const World world(c);
  std::size_t rows = 0;
  for (int rank = 0; rank < c.ranks(); ++rank)
    for (const auto& ofExpert : world.rowsOf(rank))
      for (const World::Choice& choice : ofExpert) rows += choice.source != rank;
  const std::size_t one = bytesOf(1);
  EXPECT_GT(one, rows * c.rowBytes());
  EXPECT_EQ(bytesOf(3), one + 2 * rows * c.rowBytes());
}

TEST(RoutesOfGpus, BecomeGraphs) {
  const Case c = smallCase();
  const World world(c);
  onGpus(c, 3, [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    GpuMemory memory;
    const moecclStream_t stream = myGpu().newStream(false);
    std::optional<Route> route;
    route.emplace(grid.it, c);
    std::unique_ptr<Pass> pass = passOf(route->it, world, comm, rank, memory, stream);
    const Echo echo(world, rank, memory, stream);
    const Buffer rows(memory, stream, roomFor(*pass, c));
    const auto dispatch = [&] {
      return moecclPassDispatch(pass->it, echo.input.at(), rows.at(), stream);
    };
    const auto combine = [&] {
      return moecclPassCombine(pass->it, rows.at(), echo.output.at(), stream);
    };
    myGpu().synchronize(stream);
    myGpu().beginCapture(stream);
    checkError(dispatch(), moecclInvalidUsage, comm,
               {"moecclPassDispatch", "being captured", "once before the capture"});
    const int32_t* const device = static_cast<const int32_t*>(echo.input.at());
    moecclRoutePass_t none = nullptr;
    checkError(begin(route->it, 1, device, echo.input.at<float>(), stream, &none),
               moecclInvalidUsage, comm, {"moecclRouteBegin", "outside of captures"});
    myGpu().endCapture(stream);
    check(dispatch(), comm);
    check(combine(), comm);
    echo.requireSums(rank);
    myGpu().beginCapture(stream);
    check(dispatch(), comm);
    check(combine(), comm);
    {
      const auto graph = myGpu().endCapture(stream);
      // Its lists are the graph's, whatever becomes of the route.
      pass.reset();
      passOf(route->it, world, comm, rank, memory, stream);
      route.reset();
      for (int replay = 0; replay < 2; ++replay) {
        const std::vector<unsigned char> nothing(echo.output.get().size(), 0xee);
        myGpu().toDevice(echo.output.at<std::byte>(), nothing.data(), nothing.size(), stream);
        myGpu().replay(*graph, stream);
        echo.requireSums(rank);
      }
    }
    myGpu().deleteStream(stream);
  });
}

// The choices of each step are the GPU's: a graph of a whole step goes on with others, of fewer
// tokens too, which the host never sees.
TEST(RoutesOfGpus, DecodeInAGraph) {
  for (const char* algorithm : {"node", "rank", "flat"}) {
    Case c = smallCase();
    c.algorithm = algorithm;
    c.latency = true;
    c.tokens = 3;
    c.maxTokens = 8;
    c.buckets = {4, 6};
    const World world(c);
    Case other = c;
    other.style = Style::hot;
    const World hot(other);
    onGpus(c, 4, [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      const Route route(grid.it, c);
      GpuMemory memory;
      const moecclStream_t stream = myGpu().newStream(false);
      const int64_t* begins = nullptr;
      const Buffer chosen(memory, stream, world.experts[rank]),
          weights(memory, stream, world.weights(rank)),
          rows(memory, stream,
               std::vector<float>(static_cast<size_t>(maxRowsOf(route.it) * c.hidden)));
      const Echo echo(world, rank, memory, stream);
      const auto step = [&] {
        const Pass pass(comm, route.it, world.tokens(rank), chosen.at<int32_t>(),
                        weights.at<float>(), stream);
        begins = pass.rows().deviceBegins;
        check(moecclPassDispatch(pass.it, echo.input.at(), rows.at(), stream), comm);
        check(moecclPassCombine(pass.it, rows.at(), echo.output.at(), stream), comm);
      };
      myGpu().beginCapture(stream);
      {
        const Pass pass(comm, route.it, 0, nullptr, nullptr, stream);
        checkError(moecclPassDispatch(pass.it, echo.input.at(), rows.at(), stream),
                   moecclInvalidUsage, comm, {"being captured", "once before the capture"});
      }
      myGpu().endCapture(stream);
      step();
      echo.requireSums(rank);
      // From now on there is no memory to be had.
      myGpu().limitMemory(1);
      step();
      echo.requireSums(rank);
      myGpu().limitMemory(static_cast<std::size_t>(-1));
      const auto before = world.experts[rank].size();
      myGpu().beginCapture(stream);
      step();
      {
        const auto graph = myGpu().endCapture(stream);
        for (const World* it : {&hot, &world, &hot}) {
          checkThat(it->experts[rank].size() == before, "other tokens");
          myGpu().toDevice(chosen.at<std::byte>(), it->experts[rank].data(),
                           before * sizeof(int32_t), stream);
          myGpu().replay(*graph, stream);
          const Echo expected(*it, rank, memory, stream);
          echo.requireSums(expected, rank);
          const size_t local = it->rowsOf(rank).size();
          std::vector<int64_t> got(local + 1);
          memory.get(got.data(), begins, got.size() * sizeof(int64_t), stream);
          int64_t begin = 0;
          for (size_t expert = 0; expert < local; ++expert) {
            checkThat(got[expert] == begin, "an expert begins elsewhere");
            begin += static_cast<int64_t>(it->rowsOf(rank)[expert].size());
          }
          checkThat(got[local] == begin, "another number of rows");
        }
      }
      myGpu().deleteStream(stream);
    });
  }
}

// What a call moves is a bucket's, and buckets that are none are refused.
TEST(RoutesOfGpus, SendWhatABucketHas) {
  const auto bytesOf = [](int tokens) {
    Case c = smallCase();
    c.nodes = {1, 1};
    c.latency = true;
    c.maxTokens = 16;
    c.buckets = {2, 8};
    c.hidden = 1024;
    c.tokens = tokens;
    const World world(c);
    std::size_t most = 0;
    for (const GpuCall& call : onGpus(c, 2, [&](moecclComm_t comm, int rank) {
           const Grid grid(comm, world);
           const Route route(grid.it, c);
           GpuMemory memory;
           exercise(world, comm, route.it, rank, memory, nullptr);
         }))
      if (call.kind == GpuCall::Kind::send) most = std::max(most, call.bytes);
    return most;
  };
  EXPECT_LT(bytesOf(2), bytesOf(3));
  EXPECT_EQ(bytesOf(3), bytesOf(8));
  EXPECT_LT(bytesOf(8), bytesOf(9));
  EXPECT_EQ(bytesOf(9), bytesOf(16));
}

// NCCL would wait for ever where ranks send messages of different buckets.
TEST(RoutesOfGpus, CompareBuckets) {
  Case c = smallCase();
  c.nodes = {2, 1};
  c.latency = true;
  c.maxTokens = 16;
  const World world(c);
  struct Try {
    std::vector<int64_t> others, last;  // of ranks 0 and 1, and of rank 2
    std::string what;
  };
  const Try tries[] = {
      {{2, 8}, {2, 7}, "buckets[1] is 8 on rank 0 and 7 on rank 2"},
      {{2, 8}, {2}, "numBuckets is 2 on rank 0 and 1 on rank 2"},
      {{}, {16}, "numBuckets is 0 on rank 0 and 1 on rank 2"},
  };
  onGpus(c, 6, [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    for (const Try& it : tries) {
      const std::vector<int64_t>& buckets = rank == 2 ? it.last : it.others;
      moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
      config.mode = "latency";
      config.maxTokens = c.maxTokens;
      config.buckets = buckets.data();
      config.numBuckets = static_cast<int64_t>(buckets.size());
      moecclRoute_t refused = nullptr;
      checkError(moecclRouteCreate(grid.it, &config, &refused), moecclInvalidUsage, comm,
                 {"different configs", it.what});
    }
  });
}

// Runs `body` on the ranks of a route with a schedule.
void onScheduled(const Scheduled& c, unsigned seed,
                 const std::function<void(moecclComm_t, moecclGrid_t, int, moecclStream_t)>& body) {
  SCOPED_TRACE(textOf(c));
  onGpus(Job{.ranks = c.ranks(), .nodes = {}, .algorithms = {}}, seed,
         [&](moecclComm_t comm, int rank) {
           moecclGrid_t grid = makeGrid(comm, c.grid);
           const moecclStream_t stream = myGpu().newStream(false);
           body(comm, grid, rank, stream);
           myGpu().deleteStream(stream);
           check(moecclGridDestroy(grid), comm);
         });
}

void expectExact(std::span<const moecclDataType_t> datatypes) {
  unsigned seed = 0;
  for (const Scheduled& c : scheduledCases(datatypes)) {
    onScheduled(c, ++seed,
                [&](moecclComm_t comm, moecclGrid_t grid, int rank, moecclStream_t stream) {
                  GpuMemory memory;
                  exercise(c, comm, grid, rank, memory, stream);
                });
    if (testing::Test::HasFailure()) return;
  }
}

constexpr moecclDataType_t kNarrow[] = {moecclFloat16}, kOthers[] = {moecclFloat32, moecclBfloat16};

TEST(ScheduledRoutesOnGpus, AreExact) { expectExact(kNarrow); }
TEST(WideScheduledRoutesOnGpus, AreExact) { expectExact(kOthers); }

TEST(ScheduledRoutesOnGpus, TakeAnotherNumberOfTokensInEachPass) {
  unsigned seed = 0;
  for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 2, moecclOrderEspEp},
                                        {1, 4, 1, moecclOrderEspEp},
                                        {4, 2, 2, moecclOrderEpEsp}})
    for (const double capacityFactor : {0.0, 0.75}) {
      Scheduled c{.grid = grid, .capacityFactor = capacityFactor};
      for (const char* schedule : schedulesOf(c)) {
        c.schedule = schedule;
        onScheduled(c, ++seed,
                    [&](moecclComm_t comm, moecclGrid_t on, int rank, moecclStream_t stream) {
                      GpuMemory memory;
                      exerciseDrawn(c, comm, on, rank, 10, memory, stream);
                    });
      }
    }
}

TEST(ScheduledRoutesOnGpus, SayWhatTheyDoNotOffer) {
  const Scheduled c{.grid = {2, 2, 1, moecclOrderEspEp}, .capacityFactor = 1};
  onScheduled(c, 1, [&](moecclComm_t comm, moecclGrid_t grid, int, moecclStream_t) {
    const auto refuses = [&](const Scheduled& wrong, const std::vector<std::string>& parts) {
      const moecclRouteConfig_t config = configOf(wrong);
      moecclRoute_t none = nullptr;
      checkError(moecclRouteCreate(grid, &config, &none), moecclInvalidArgument, comm, parts);
    };
    Scheduled wrong = c;
    wrong.datatype = moecclFloat64;
    refuses(wrong, {"config.datatype is 8", "moecclFloat32", "Bfloat16"});
    wrong = c;
    wrong.learn = true;
    refuses(wrong, {"config.learn must be 0 on GPUs"});
  });
}

// One kernel of each launch moves all rows, however many they are.
TEST(RoutesOfGpus, MoveRowsInFewLaunches) {
  const auto copiesOf = [](int tokens) {
    Case c = smallCase();
    c.tokens = tokens;
    const World world(c);
    const std::vector<GpuCall> calls = onGpus(c, 2, [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      const Route route(grid.it, c);
      GpuMemory memory;
      exercise(world, comm, route.it, rank, memory, nullptr);
    });
    const auto isKernel = [](const GpuCall& call) {
      return call.kind == GpuCall::Kind::copy ||
             (call.kind == GpuCall::Kind::kernel && call.name.ends_with(" rows"));
    };
    return std::ranges::count_if(calls, isKernel);
  };
  // With few tokens some messages have rows that follow one another.
  const auto few = copiesOf(8);
  EXPECT_GT(few, 0);
  EXPECT_LT(copiesOf(160), few + few / 4);
}

TEST(RoutesOfGpus, NameWhatIsWrong) {
  Case c = smallCase();
  c.nodes = {1, 1};
  c.maxTokens = 4;
  c.tokens = 4;
  const World world(c);
  onGpus(c, 1, [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    GpuMemory memory;
    const Buffer wrong(memory, nullptr, std::vector<int32_t>{0, 1, 7}),
        weights(memory, nullptr, std::vector<float>{1, 1, 1});
    const auto refuses = [&](int64_t tokens, const int32_t* chosen, const float* with,
                             const std::vector<std::string>& parts) {
      moecclRoutePass_t none = nullptr;
      checkError(begin(route.it, tokens, chosen, with, nullptr, &none), moecclInvalidArgument, comm,
                 parts);
    };
    refuses(1, wrong.at<int32_t>(), weights.at<float>(), {"routing.experts[0][2] is 7", "0 to 6"});
    refuses(1, nullptr, weights.at<float>(), {"routing.experts is NULL"});
    refuses(1, wrong.at<int32_t>(), nullptr, {"routing.weights is NULL"});
    refuses(5, wrong.at<int32_t>(), weights.at<float>(), {"routing.tokens is 5", "0 to 4"});
    const int64_t buckets[] = {2, 2};
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.mode = "latency";
    config.maxTokens = 4;
    config.buckets = buckets;
    config.numBuckets = 2;
    moecclRoute_t refused = nullptr;
    checkError(moecclRouteCreate(grid.it, &config, &refused), moecclInvalidArgument, comm,
               {"config.buckets[1] is 2", "more than 2", "at most maxTokens, 4"});
    config.mode = nullptr;
    checkError(moecclRouteCreate(grid.it, &config, &refused), moecclInvalidArgument, comm,
               {"config.numBuckets is 2"});
    config.numBuckets = 0;
    config.weights = moecclRouteWeightsRows;
    checkError(moecclRouteCreate(grid.it, &config, &refused), moecclInvalidArgument, comm,
               {"moecclRouteWeightsRows", "on hosts alone"});
    const auto pass = passOf(route.it, world, comm, rank, memory, nullptr);
    checkThat(pass->rows().deviceBegins == nullptr, "counts of a device in throughput mode");
    const auto bytes =
        static_cast<size_t>(pass->rows().rows + world.tokens(rank) + 1) * c.combinedBytes();
    const Buffer room(memory, nullptr, Bytes(bytes));
    auto* const at = room.at<unsigned char>();
    unsigned char* const behind = at + static_cast<size_t>(world.tokens(rank)) * c.combinedBytes();
    checkError(moecclPassCombine(pass->it, behind + 2, at, nullptr), moecclInvalidArgument, comm,
               {"rows is at an address", "multiple of 4"});
    checkError(moecclPassDispatch(pass->it, at, nullptr, nullptr), moecclInvalidArgument, comm,
               {"rows is NULL"});
    checkError(moecclPassDispatch(pass->it, at, at, nullptr), moecclInvalidArgument, comm,
               {"overlap"});
  });
}

// In the order of a stream, as on hosts.
TEST(RoutesOfGpus, QuantizeRows) {
  constexpr int64_t kRows = 3, kHidden = 256;
  constexpr size_t kBytes = kRows * (kHidden + kHidden / 128 * sizeof(float));
  Case c = smallCase();
  c.nodes = {1};
  onGpus(c, 8, [&](moecclComm_t comm, int rank) {
    GpuMemory memory;
    const moecclStream_t stream = myGpu().newStream(false);
    std::vector<float> rows, expectedBack(kRows * kHidden);
    for (int64_t i = 0; i < kRows * kHidden; ++i)
      rows.push_back(static_cast<float>(small(rank, 1, i)) * (i < kHidden ? 16 : 1));
    Bytes expected(kBytes);
    check(moecclQuantizeRows(kRows, kHidden, moecclFloat32, rows.data(), moecclFloat8e4m3,
                             expected.data(), nullptr, nullptr));
    check(moecclDequantizeRows(kRows, kHidden, moecclFloat8e4m3, expected.data(), moecclFloat32,
                               expectedBack.data(), nullptr, nullptr));
    const Buffer from(memory, stream, rows), to(memory, stream, Bytes(kBytes)),
        back(memory, stream, std::vector<float>(rows.size()));
    check(moecclQuantizeRows(kRows, kHidden, moecclFloat32, from.at(), moecclFloat8e4m3, to.at(),
                             comm, stream),
          comm);
    check(moecclDequantizeRows(kRows, kHidden, moecclFloat8e4m3, to.at(), moecclFloat32, back.at(),
                               comm, stream),
          comm);
    checkThat(to.get() == expected, "other rows of float8");
    const Bytes got = back.get();
    checkThat(std::memcmp(got.data(), expectedBack.data(), got.size()) == 0, "other rows");
    checkError(moecclQuantizeRows(1, kHidden, moecclFloat32, from.at(), moecclFloat8e4m3,
                                  to.at<unsigned char>() + 2, comm, stream),
               moecclInvalidArgument, comm, {"to is at an address", "multiple of 4"});
    // A launch would end the capture.
    myGpu().beginCapture(stream, /*blocking=*/true);
    checkError(moecclQuantizeRows(kRows, kHidden, moecclFloat32, from.at(), moecclFloat8e4m3,
                                  to.at(), comm, nullptr),
               moecclInvalidUsage, comm, {"legacy default stream"});
    myGpu().endCapture(stream);
    myGpu().deleteStream(stream);
  });
}

TEST(RoutesOfGpus, CountLoads) {
  const Case c = smallCase();
  const World world(c);
  onGpus(c, 6, [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    GpuMemory memory;
    for (int step = 0; step < 2; ++step) passOf(route.it, world, comm, rank, memory, nullptr);
    std::vector<int64_t> choices(static_cast<size_t>(c.experts), -1), rows(4, -1);
    check(moecclRouteGetLoads(route.it, choices.data(), rows.data(), 1), comm);
    for (int expert = 0; expert < c.experts; ++expert) {
      int64_t expected = 0;
      for (const auto& theirs : world.experts) expected += 2 * std::ranges::count(theirs, expert);
      checkThat(choices[expert] == expected, "another number of choices");
    }
    for (int each = 0; each < 4; ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 2 * static_cast<int64_t>(expert.size());
      checkThat(rows[each] == expected, "another number of rows");
    }
  });
}

}  // namespace
}  // namespace moeccl::test

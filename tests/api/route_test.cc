// Token routing against plain loops: every algorithm, payload, number of choices and placement, to
// the last bit.
#include "moeccl/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "tests/api/route_world.h"

namespace moeccl::test {
namespace {

// Over what the library chooses, or MOECCL_TEST_PROCESSES says.
constexpr Backend kProcesses = {"processes", true, false};
constexpr Backend kBackends[] = {
    kLoopback, {"ucxThreads", false, true}, {"ucxProcesses", true, true}};

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override { return ::operator new(bytes); }
  void free(void* memory) noexcept override { ::operator delete(memory); }
  void put(void* to, const void* from, size_t bytes, moecclStream_t) override {
    std::memcpy(to, from, bytes);
  }
  void get(void* to, const void* from, size_t bytes, moecclStream_t stream) override {
    check(moecclStreamSynchronize(stream));
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
};

void exercise(const World& world, moecclComm_t comm, moecclTokenRoute_t route, int rank) {
  HostMemory memory;
  moecclStream_t stream = nullptr;
  if (world.c.stream) check(moecclStreamCreate(comm, &stream), comm);
  exercise(world, comm, route, rank, memory, stream);
  check(moecclStreamDestroy(stream), comm);
}

class TokenRoutes : public testing::TestWithParam<Case> {};

TEST_P(TokenRoutes, AgainstPlainLoops) {
  const Case c = GetParam();
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    // Again, with the memory of the first time; and less.
    Case fewer = c;
    fewer.tokens = c.tokens / 2;
    const World then(fewer);
    if (c.tokens < 100) {
      exercise(world, comm, route.it, rank);
      exercise(then, comm, route.it, rank);
    }
    exercise(world, comm, route.it, rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Pairs, TokenRoutes, testing::ValuesIn(productCases(kBackends, true)),
                         nameOfRoute);

// Large enough for several chunks, of tokens that few nodes want.
std::vector<Case> largeCases(const std::vector<const char*>& algorithms) {
  std::vector<Case> all;
  for (const char* algorithm : algorithms)
    for (const Backend& backend : {kBackends[0], kBackends[2]}) {
      Case c;
      c.backend = backend.processes ? &kBackends[2] : &kBackends[0];
      c.nodes = {3, 2};
      c.experts = 11;
      c.choices = 3;
      c.datatype = c.combined = moecclBfloat16;
      c.algorithm = algorithm;
      c.tokens = 260;
      c.hidden = 701;
      all.push_back(c);
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Wide, TokenRoutes, testing::ValuesIn(largeCases({"node", "rank", "flat"})),
                         nameOfRoute);

// Calls that are queued behind each other: what comes back from experts that do nothing is the
// token times the sum of its weights.
TEST(TokenRouteStreams, CombineOfDispatchIsTheSumOfWeights) {
  Case c;
  c.nodes = {2, 3};
  c.experts = 7;
  c.choices = 3;
  c.datatype = c.combined = moecclBfloat16;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    for (const char* algorithm : {"node", "rank", "flat"}) {
      Case with = c;
      with.algorithm = algorithm;
      const Route route(grid.it, with);
      moecclStream_t stream = nullptr;
      check(moecclStreamCreate(comm, &stream), comm);
      std::vector<float> weights;
      const int tokens = world.tokens(rank);
      for (int i = 0; i < tokens * c.choices; ++i)
        weights.push_back(world.weight({rank, i / c.choices, i % c.choices}));
      check(moecclTokenRouteSet(route.it, tokens, world.experts[rank].data(), weights.data(),
                                nullptr),
            comm);
      int64_t count = 0;
      check(moecclTokenRouteGetCounts(route.it, &count, nullptr), comm);
      const size_t elements = static_cast<size_t>(tokens) * static_cast<size_t>(c.hidden);
      Bytes input(elements * 2), output(elements * 2, 0xee), expected(elements * 2);
      Bytes rows(static_cast<size_t>(count) * static_cast<size_t>(c.hidden) * 2);
      for (int token = 0; token < tokens; ++token)
        for (int64_t i = 0; i < c.hidden; ++i) {
          float sum = 0;
          for (int choice = 0; choice < c.choices; ++choice)
            if (world.experts[rank][token * c.choices + choice] >= 0)
              sum += world.weight({rank, token, choice});
          const auto at = static_cast<size_t>(token * c.hidden + i);
          put(input, at, small(rank, token, i), c.datatype);
          put(expected, at, sum * small(rank, token, i), c.datatype);
        }
      check(moecclTokenRouteDispatch(route.it, input.data(), rows.data(), stream), comm);
      check(moecclTokenRouteCombine(route.it, rows.data(), output.data(), stream), comm);
      // What is queued keeps its routing.
      check(moecclTokenRouteSet(route.it, 0, nullptr, nullptr, nullptr), comm);
      check(moecclStreamSynchronize(stream), comm);
      // 0 times -1 is -0.
      for (size_t i = 0; i < elements; ++i) {
        std::uint16_t got = 0, wanted = 0;
        std::memcpy(&got, &output[2 * i], 2);
        std::memcpy(&wanted, &expected[2 * i], 2);
        checkThat(Bfloat16::decode(got) == Bfloat16::decode(wanted), "another sum");
      }
      check(moecclStreamDestroy(stream), comm);
    }
  });
}

// More than the pairs above: every number of choices, on uneven nodes, for every payload.
std::vector<Case> latencyCases() {
  std::vector<Case> all;
  for (const Backend* backend : {&kBackends[0], &kBackends[1], &kBackends[2], &kProcesses})
    for (int choices = 1; choices <= 8; ++choices) {
      Case c;
      c.backend = backend;
      c.nodes = choices % 2 == 0 ? std::vector<int>{3, 1, 2} : std::vector<int>{2, 3};
      c.experts = choices % 3 == 0 ? 5 : 19;
      c.choices = choices;
      c.datatype = std::vector{moecclFloat8e4m3, moecclFloat32, moecclBfloat16, moecclFloat16,
                               moecclFloat8e5m2}[static_cast<size_t>(choices) % 5];
      c.combined = std::vector{moecclFloat32, moecclBfloat16,
                               moecclFloat16}[static_cast<size_t>(choices) % 3];
      c.hidden = 128;
      c.algorithm = std::vector{"node", "", "rank", "flat"}[static_cast<size_t>(choices) % 4];
      c.style = static_cast<Style>(choices % 4);
      c.stream = choices > 4;
      c.weighted = choices != 5;
      c.tokens = 9;
      c.maxTokens = 11;
      c.latency = true;
      all.push_back(c);
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Latency, TokenRoutes, testing::ValuesIn(latencyCases()), nameOfRoute);

// Loads are counted, calls on two streams wait for each other, and the next Set for both.
TEST(TokenRouteLatency, CallsOnOtherStreamsWait) {
  Case c;
  c.nodes = {2, 3};
  c.experts = 7;
  c.choices = 3;
  c.latency = true;
  c.maxTokens = c.tokens;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    moecclStream_t streams[2] = {};
    for (moecclStream_t& stream : streams) check(moecclStreamCreate(comm, &stream), comm);
    const int tokens = world.tokens(rank);
    const std::vector<float> weights(world.experts[rank].size(), 0.5f);
    std::vector<float> input(static_cast<size_t>(tokens * c.hidden)), output(input.size());
    int64_t room = 0;
    check(moecclTokenRouteGetMostRows(route.it, &room), comm);
    std::vector<float> rows(static_cast<size_t>(room * c.hidden));
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < input.size(); ++i)
        input[i] = static_cast<float>((static_cast<int>(i) * 7 + step + rank) % 11);
      // Every other time nobody has tokens.
      const bool some = step % 2 == 0;
      check(moecclTokenRouteSet(route.it, some ? tokens : 0, world.experts[rank].data(),
                                weights.data(), nullptr),
            comm);
      check(moecclTokenRouteDispatch(route.it, input.data(), rows.data(), streams[step % 3 == 0]),
            comm);
      check(moecclTokenRouteCombine(route.it, rows.data(), output.data(), streams[step % 2]), comm);
      int64_t count = -1;
      check(moecclTokenRouteGetCounts(route.it, &count, nullptr), comm);
      checkThat((count > 0) <= some, "rows came of no token");
      check(moecclStreamSynchronize(streams[step % 2]), comm);
      for (int token = 0; some && token < tokens; ++token) {
        float sum = 0;
        for (int i = token * c.choices; i < (token + 1) * c.choices; ++i)
          if (world.experts[rank][i] >= 0) sum += 0.5f;
        for (int64_t i = token * c.hidden; i < (token + 1) * c.hidden; ++i)
          checkThat(output[i] == sum * input[i], "another sum");
      }
    }
    std::vector<int64_t> choices(7, -1), theirs(5, -1);
    check(moecclTokenRouteGetLoads(route.it, choices.data(), theirs.data(), 1), comm);
    int64_t rowsOfAll = 0;
    for (int each = 0; each < c.ranks(); ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 10 * static_cast<int64_t>(expert.size());
      checkThat(theirs[each] == expected, "another number of rows");
      rowsOfAll += expected;
    }
    checkThat(std::accumulate(choices.begin(), choices.end(), int64_t{0}) == rowsOfAll,
              "another number of choices");
    for (moecclStream_t stream : streams) check(moecclStreamDestroy(stream), comm);
  });
}

// Copies, of which ranks have different numbers, have routings of their own, and outlive the
// original.
TEST(TokenRouteCopies, HaveRoutingsOfTheirOwn) {
  for (const bool latency : {false, true}) {
    Case c;
    c.nodes = {2, 2};
    c.esp = 2;
    c.latency = latency;
    c.maxTokens = 6;
    const World world(c);
    Case fewer = c;
    fewer.tokens = 3;
    const World other(fewer);
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclTokenRoute_t copies[2] = {}, unused = nullptr;
      {
        const Route route(grid.it, c);
        for (moecclTokenRoute_t& copy : copies) check(moecclTokenRouteCopy(route.it, &copy), comm);
        if (rank % 2 == 1) check(moecclTokenRouteCopy(copies[0], &unused), comm);
      }
      const auto set = [&](moecclTokenRoute_t route, const World& it) {
        const std::vector<float> ones(it.experts[rank].size(), 1);
        check(moecclTokenRouteSet(route, it.tokens(rank), it.experts[rank].data(), ones.data(),
                                  nullptr),
              comm);
      };
      set(copies[0], world);
      set(copies[1], other);
      const int32_t none = 0;
      const float one = 1;
      checkError(moecclTokenRouteSet(copies[1], 7, &none, &one, nullptr), moecclInvalidArgument,
                 comm, {"tokens is 7", "0 to 6"});
      for (const World* it : {&world, &other}) {
        if (latency) break;  // known after a dispatch
        int64_t rows = -1, expected = 0;
        check(moecclTokenRouteGetCounts(copies[it == &world ? 0 : 1], &rows, nullptr), comm);
        for (const auto& ofExpert : it->rowsOf(rank))
          expected += static_cast<int64_t>(ofExpert.size());
        checkThat(rows == expected, "the rows of another routing");
      }
      for (const World* it : {&world, &other})
        exercise(*it, comm, copies[it == &world ? 0 : 1], rank);
      for (const moecclTokenRoute_t copy : {copies[0], copies[1], unused})
        check(moecclTokenRouteDestroy(copy));
      checkError(moecclTokenRouteCopy(nullptr, copies), moecclInvalidArgument, nullptr,
                 {"moecclTokenRouteCopy", "route is NULL"});
    });
  }
}

TEST(TokenRouteLatency, SaysWhatItHasNot) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.mode = moecclRouteLatency;
    config.experts = 3;
    config.topK = 2;
    moecclTokenRoute_t route = nullptr;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidArgument, comm,
               {"config.maxTokens is 0", "1 to 1024"});
    config.maxTokens = 4;
    config.mode = static_cast<moecclRouteMode_t>(2);
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidArgument, comm,
               {"config.mode is 2"});
    config.mode = moecclRouteLatency;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    const int32_t chosen[4] = {0, 1, 2, 2};
    const float weights[4] = {1, 1, 1, 1};
    std::uint16_t buffer[16] = {};
    checkError(moecclTokenRouteSet(route, 2, chosen, weights, nullptr), moecclInvalidArgument, comm,
               {"topkIndices[1][1] is 2 again"});
    checkError(moecclTokenRouteDispatch(route, buffer, buffer + 2, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteSet first"});
    check(moecclTokenRouteSet(route, 1, chosen, weights, nullptr), comm);
    checkError(moecclTokenRouteGetCounts(route, nullptr, nullptr), moecclInvalidUsage, comm,
               {"moecclTokenRouteDispatch"});
    checkError(moecclTokenRouteCombine(route, buffer + 2, buffer, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteDispatch"});
    // Room for 8 rows.
    checkError(moecclTokenRouteDispatch(route, buffer + 7, buffer, nullptr), moecclInvalidArgument,
               comm, {"overlap"});
    check(moecclTokenRouteDispatch(route, buffer + 8, buffer, nullptr), comm);
    checkError(moecclTokenRouteDispatchBackward(route, buffer, buffer + 8, nullptr),
               moecclInvalidUsage, comm, {"no backward passes"});
    checkError(
        moecclTokenRouteCombineBackward(route, buffer + 8, buffer, buffer + 9, nullptr, nullptr),
        moecclInvalidUsage, comm, {"no backward passes"});
    check(moecclTokenRouteDestroy(route));
    config.mode = moecclRouteThroughput;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    int64_t most = 0;
    checkError(moecclTokenRouteGetMostRows(route, &most), moecclInvalidUsage, comm,
               {"not in latency mode"});
    check(moecclTokenRouteDestroy(route));
  });
}

// Ranks whose routes differ only in what messages would tell find out.
TEST(TokenRouteLatency, OtherCallsThanTheOthers) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.mode = moecclRouteLatency;
    config.experts = 2;
    moecclTokenRoute_t routes[2] = {};
    for (moecclTokenRoute_t& route : routes) {
      ++config.maxTokens;
      check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    }
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1};
    check(moecclTokenRouteSet(routes[rank], 1, chosen, weights, nullptr), comm);
    std::uint16_t from[1] = {}, to[4] = {};
    checkError(moecclTokenRouteDispatch(routes[rank], from, to, nullptr), moecclRemoteError, comm,
               {"token dispatch", "at most 1 tokens", "at most 2 tokens"});
    for (const moecclTokenRoute_t route : routes) check(moecclTokenRouteDestroy(route));
    throw Aborts{};
  });
}

// A call on a stream that failed has brought no rows, and there are no more calls.
TEST(TokenRouteLatency, SaysNoCountsOfWhatFailed) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.mode = moecclRouteLatency;
    config.experts = 2;
    config.maxTokens = 1;
    // Rows of as many bytes; sums of others.
    moecclTokenRoute_t routes[2] = {};
    for (moecclTokenRoute_t& route : routes) {
      config.datatype = &route == routes ? moecclFloat32 : moecclBfloat16;
      config.hidden = &route == routes ? 2 : 4;
      check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    }
    const moecclTokenRoute_t route = routes[rank];
    moecclStream_t stream = nullptr;
    check(moecclStreamCreate(comm, &stream), comm);
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1}, from[2] = {};
    float to[4] = {}, back[2] = {};
    check(moecclTokenRouteSet(route, 1, chosen, weights, stream), comm);
    check(moecclTokenRouteDispatch(route, from, to, stream), comm);
    check(moecclTokenRouteCombine(route, to, back, stream), comm);
    const std::vector<std::string> parts = {"token dispatch", "rows of 8 bytes, sums in float32",
                                            "sums in bfloat16"};
    checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, parts);
    checkError(moecclTokenRouteGetCounts(route, nullptr, nullptr), moecclRemoteError, comm, parts);
    checkError(moecclTokenRouteSet(route, 1, chosen, weights, nullptr), moecclRemoteError, comm,
               parts);
    for (const moecclTokenRoute_t each : routes) check(moecclTokenRouteDestroy(each));
    moecclStreamDestroy(stream);
    throw Aborts{};
  });
}

TEST(TokenRouteLoads, CountChoicesAndRowsOfAllRanks) {
  Case c;
  c.nodes = {2, 1};
  c.experts = 5;
  c.choices = 3;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    std::vector<float> weights(world.experts[rank].size(), 1);
    for (int step = 0; step < 2; ++step)
      check(moecclTokenRouteSet(route.it, world.tokens(rank), world.experts[rank].data(),
                                weights.data(), nullptr),
            comm);
    std::vector<int64_t> choices(5, -1), rows(3, -1);
    check(moecclTokenRouteGetLoads(route.it, choices.data(), rows.data(), 1), comm);
    for (int expert = 0; expert < 5; ++expert) {
      int64_t expected = 0;
      for (const auto& theirs : world.experts) expected += 2 * std::ranges::count(theirs, expert);
      checkThat(choices[expert] == expected, "another number of choices");
    }
    for (int each = 0; each < 3; ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 2 * static_cast<int64_t>(expert.size());
      checkThat(rows[each] == expected, "another number of rows");
    }
    check(moecclTokenRouteGetLoads(route.it, choices.data(), nullptr, 0), comm);
    checkThat(std::ranges::count(choices, 0) == 5, "loads were not reset");
  });
}

TEST(QuantizedRows, ThereAndBack) {
  constexpr int64_t kHidden = 256;
  std::vector<float> rows(2 * kHidden), back(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(static_cast<int>(i % 57) - 28) * (i < kHidden ? 16 : 1);
  std::vector<unsigned char> quantized(2 * (kHidden + kHidden / 128 * sizeof(float)));
  for (const moecclDataType_t type : {moecclFloat8e4m3, moecclFloat8e5m2}) {
    check(moecclQuantizeRows(2, kHidden, moecclFloat32, rows.data(), type, quantized.data(),
                             nullptr, nullptr));
    check(moecclDequantizeRows(2, kHidden, type, quantized.data(), moecclFloat32, back.data(),
                               nullptr, nullptr));
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_NEAR(back[i], rows[i], std::abs(rows[i]) / 7) << i;
  }
  const auto refuses = [&](moecclResult_t result, const std::vector<std::string>& parts) {
    checkError(result, moecclInvalidArgument, nullptr, parts);
  };
  refuses(moecclQuantizeRows(1, 100, moecclFloat32, rows.data(), moecclFloat8e4m3, quantized.data(),
                             nullptr, nullptr),
          {"hidden is 100", "128"});
  refuses(moecclQuantizeRows(-1, 128, moecclFloat32, rows.data(), moecclFloat8e4m3,
                             quantized.data(), nullptr, nullptr),
          {"rows is -1"});
  refuses(moecclQuantizeRows(1, 128, moecclInt32, rows.data(), moecclFloat8e4m3, quantized.data(),
                             nullptr, nullptr),
          {"fromType is 2"});
  refuses(moecclDequantizeRows(1, 128, moecclFloat16, rows.data(), moecclFloat32, back.data(),
                               nullptr, nullptr),
          {"fromType is 6"});
  refuses(moecclQuantizeRows(1, 128, moecclFloat32, nullptr, moecclFloat8e4m3, quantized.data(),
                             nullptr, nullptr),
          {"from is NULL", "512 bytes"});
  refuses(moecclQuantizeRows(1, 128, moecclFloat32, rows.data(), moecclFloat8e4m3, rows.data(),
                             nullptr, nullptr),
          {"overlap"});
  int anything = 0;
  refuses(moecclQuantizeRows(1, 128, moecclFloat32, rows.data(), moecclFloat8e4m3, quantized.data(),
                             nullptr, reinterpret_cast<moecclStream_t>(&anything)),
          {"stream is not NULL"});
}

TEST(TokenRouteErrors, NameWhatIsWrong) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    const auto create = [&](auto change, const std::vector<std::string>& parts) {
      moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
      change(config);
      moecclTokenRoute_t none = nullptr;
      checkError(moecclTokenRouteCreate(grid.it, &config, &none), moecclInvalidArgument, comm,
                 parts);
    };
    create([](auto& it) { it.experts = 0; }, {"config.experts is 0", "32768"});
    create([](auto& it) { it.topK = 129; }, {"config.topK is 129", "128"});
    create([](auto& it) { it.hidden = 0; }, {"config.hidden is 0"});
    create([](auto& it) { it.datatype = moecclInt8; }, {"config.datatype is 0"});
    create([](auto& it) { it.combineDatatype = moecclFloat64; }, {"config.combineDatatype is 8"});
    create([](auto& it) { it.algorithm = "ring"; }, {"\"ring\"", "node, rank, flat"});
    create([](auto& it) { it.magic = 0; }, {"MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER"});
    create([](auto& it) { it.numBuckets = 2; }, {"config.numBuckets is 2", "only latency mode"});
    create(
        [](auto& it) {
          it.datatype = moecclFloat8e4m3;
          it.hidden = 100;
        },
        {"config.hidden is 100", "multiple of 128"});
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    checkError(moecclTokenRouteCreate(grid.it, &config, nullptr), moecclInvalidArgument, comm,
               {"route is NULL"});
    config.experts = 3;
    config.topK = 2;
    config.maxTokens = 4;
    moecclTokenRoute_t route = nullptr;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    std::uint16_t buffer[8] = {};
    checkError(moecclTokenRouteDispatch(route, buffer, buffer + 4, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteSet first"});
    const int32_t chosen[4] = {0, 1, 2, -2};
    const float weights[4] = {1, 1, 1, 1};
    const auto set = [&](int64_t tokens, const int32_t* which, const float* with,
                         const std::vector<std::string>& parts) {
      checkError(moecclTokenRouteSet(route, tokens, which, with, nullptr), moecclInvalidArgument,
                 comm, parts);
    };
    set(2, chosen, weights, {"topkIndices[1][1] is -2", "0 to 2"});
    set(5, chosen, weights, {"tokens is 5", "0 to 4"});
    set(-1, chosen, weights, {"tokens is -1"});
    set(1, nullptr, weights, {"topkIndices is NULL"});
    set(1, chosen, nullptr, {"topkWeights is NULL"});
    check(moecclTokenRouteSet(route, 1, chosen, weights, nullptr), comm);
    checkError(moecclTokenRouteDispatch(route, buffer, nullptr, nullptr), moecclInvalidArgument,
               comm, {"rows is NULL", "4 bytes"});
    checkError(moecclTokenRouteCombine(route, buffer, buffer + 1, nullptr), moecclInvalidArgument,
               comm, {"rows and output overlap"});
    checkError(
        moecclTokenRouteCombineBackward(route, buffer, buffer + 1, buffer + 3, nullptr, nullptr),
        moecclInvalidArgument, comm, {"weightGradients is NULL"});
    check(moecclTokenRouteDestroy(route));
    checkError(moecclTokenRouteDestroy(route), moecclInvalidArgument, nullptr,
               {"route is no route"});
    check(moecclTokenRouteDestroy(nullptr));
    checkError(moecclTokenRouteSet(nullptr, 0, nullptr, nullptr, nullptr), moecclInvalidArgument,
               nullptr, {"route is NULL"});
  });
}

TEST(TokenRouteErrors, OneRankWithAnotherConfig) {
  Case c;
  c.nodes = {2, 1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.experts = rank == 2 ? 6 : 5;
    moecclTokenRoute_t route = nullptr;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidUsage, comm,
               {"experts is 5 on rank 0 and 6 on rank 2"});
    config.experts = rank == 1 ? -5 : 5;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route),
               rank == 1 ? moecclInvalidArgument : moecclRemoteError, comm,
               {"config.experts is -5"});
    config.experts = 5;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    check(moecclTokenRouteDestroy(route));
  });
}

// Ranks that come to a Set with different routes, though all of them would tell as much.
TEST(TokenRouteErrors, SetsOfOtherRoutes) {
  struct Other {
    const char* says;
    void (*change)(moecclTokenRouteConfig_t& config);
  };
  constexpr Other kOthers[] = {
      {"Set of 2 of 64 experts", [](auto& it) { it.experts = 64; }},
      {"Set of 3 of 8 experts", [](auto& it) { it.topK = 3; }},
      {"4 x float32 to float32", [](auto& it) { it.datatype = moecclFloat32; }},
      {"9 x bfloat16 to bfloat16", [](auto& it) { it.hidden = 9; }},
      {"4 x bfloat16 to float16", [](auto& it) { it.combineDatatype = moecclFloat16; }},
      {"to bfloat16, auto", [](auto& it) { it.weights = moecclRouteWeightsCaller; }},
      {"weighted, node", [](auto& it) { it.algorithm = "node"; }}};
  Case c;
  c.nodes = {2, 2};
  const World world(c);
  for (const Other& other : kOthers)
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
      config.experts = 8;
      config.topK = 2;
      config.hidden = 4;
      moecclTokenRoute_t routes[2] = {};
      check(moecclTokenRouteCreate(grid.it, &config, &routes[0]), comm);
      other.change(config);
      check(moecclTokenRouteCreate(grid.it, &config, &routes[1]), comm);
      checkError(moecclTokenRouteSet(routes[rank == 1], 0, nullptr, nullptr, nullptr),
                 moecclRemoteError, comm,
                 {"a route's Set of 2 of 8 experts, 4 x bfloat16 to bfloat16, weighted, auto",
                  other.says});
      for (const moecclTokenRoute_t route : routes) check(moecclTokenRouteDestroy(route));
      throw Aborts{};
    });
}

// A rank that makes another pass than the others, of rows that are as large.
TEST(TokenRouteErrors, OtherCallsThanTheOthers) {
  struct Pair {
    moecclResult_t (*calls[2])(moecclTokenRoute_t route, const void* from, void* to,
                               moecclStream_t stream);
    std::vector<std::string> parts;
  };
  const auto back = [](moecclTokenRoute_t route, const void* from, void* to,
                       moecclStream_t stream) {
    return moecclTokenRouteCombineBackward(route, from, nullptr, to, nullptr, stream);
  };
  const Pair pairs[] = {
      {{moecclTokenRouteDispatch, moecclTokenRouteCombine}, {"token dispatch", "token combine"}},
      {{moecclTokenRouteDispatch, back},
       {"token dispatch", "inside moecclTokenRouteCombineBackward"}},
      {{moecclTokenRouteCombine, moecclTokenRouteDispatchBackward},
       {"token combine", "inside moecclTokenRouteDispatchBackward"}}};
  Case c;
  c.nodes = {2};
  const World world(c);
  for (const Pair& pair : pairs)
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
      config.experts = 2;
      config.weights = moecclRouteWeightsCaller;
      moecclTokenRoute_t route = nullptr;
      check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
      const int32_t chosen[1] = {1 - rank};
      check(moecclTokenRouteSet(route, 1, chosen, nullptr, nullptr), comm);
      std::uint16_t from[1] = {}, to[1] = {};
      checkError(pair.calls[rank](route, from, to, nullptr), moecclRemoteError, comm, pair.parts);
      check(moecclTokenRouteDestroy(route));
      throw Aborts{};
    });
}

}  // namespace
}  // namespace moeccl::test

// Routes against plain loops: every algorithm, payload, number of choices and placement, to
// the last bit.
#include "moeccl/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
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

void exercise(const World& world, moecclComm_t comm, moecclRoute_t route, int rank) {
  HostMemory memory;
  moecclStream_t stream = nullptr;
  if (world.c.stream) check(moecclStreamCreate(comm, &stream), comm);
  exercise(world, comm, route, rank, memory, stream);
  check(moecclStreamDestroy(stream), comm);
}

class Routes : public testing::TestWithParam<Case> {};

TEST_P(Routes, AgainstPlainLoops) {
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

INSTANTIATE_TEST_SUITE_P(Pairs, Routes, testing::ValuesIn(productCases(kBackends, false)),
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

INSTANTIATE_TEST_SUITE_P(Wide, Routes, testing::ValuesIn(largeCases({"node", "rank", "flat"})),
                         nameOfRoute);

// Calls that are queued behind each other: what comes back from experts that do nothing is the
// token times the sum of its weights.
TEST(RouteStreams, CombineOfDispatchIsTheSumOfWeights) {
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
      std::optional<Pass> pass;
      pass.emplace(comm, route.it, tokens, world.experts[rank].data(), weights.data(), nullptr);
      const size_t elements = static_cast<size_t>(tokens) * static_cast<size_t>(c.hidden);
      Bytes input(elements * 2), output(elements * 2, 0xee), expected(elements * 2);
      Bytes rows(static_cast<size_t>(pass->rows().rows) * static_cast<size_t>(c.hidden) * 2);
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
      check(moecclPassDispatch(pass->it, input.data(), rows.data(), stream), comm);
      check(moecclPassCombine(pass->it, rows.data(), output.data(), stream), comm);
      // What is queued keeps its routing, though another pass takes the memory of this one.
      pass.reset();
      const Pass other(comm, route.it, 0, nullptr, nullptr, nullptr);
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
      if (choices == 5) c.weights = moecclRouteWeightsNone;
      c.tokens = 9;
      c.maxTokens = 11;
      c.latency = true;
      all.push_back(c);
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Latency, Routes, testing::ValuesIn(latencyCases()), nameOfRoute);

// Loads are counted, calls on two streams wait for each other, and the next Begin for both.
TEST(RouteLatency, CallsOnOtherStreamsWait) {
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
    std::vector<float> rows(static_cast<size_t>(maxRowsOf(route.it) * c.hidden));
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < input.size(); ++i)
        input[i] = static_cast<float>((static_cast<int>(i) * 7 + step + rank) % 11);
      // Every other time nobody has tokens.
      const bool some = step % 2 == 0;
      const Pass pass(comm, route.it, some ? tokens : 0, world.experts[rank].data(), weights.data(),
                      nullptr);
      check(moecclPassDispatch(pass.it, input.data(), rows.data(), streams[step % 3 == 0]), comm);
      check(moecclPassCombine(pass.it, rows.data(), output.data(), streams[step % 2]), comm);
      checkThat((pass.rows().rows > 0) <= some, "rows came of no token");
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
    check(moecclRouteGetLoads(route.it, choices.data(), theirs.data(), 1), comm);
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

// Passes that are open at once have routings of their own, and outlive the route; in throughput
// mode each may have another number of tokens, and calls of them come in any order.
TEST(RoutePasses, HaveRoutingsOfTheirOwn) {
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
      const World* const worlds[] = {&world, &other, &world};
      std::vector<std::unique_ptr<Pass>> passes;
      {
        const Route route(grid.it, c);
        for (const World* it : worlds) {
          const std::vector<float> ones(it->experts[rank].size(), 1);
          passes.push_back(std::make_unique<Pass>(comm, route.it, it->tokens(rank),
                                                  it->experts[rank].data(), ones.data(), nullptr));
        }
        // Another of the same route, meanwhile.
        exercise(world, comm, route.it, rank);
      }
      for (const size_t i : {2, 0, 1, 1, 2}) {
        const World& it = *worlds[i];
        const auto tokens = static_cast<size_t>(it.tokens(rank) * c.hidden);
        std::vector<float> input(tokens), output(tokens, -1), rows(1000);
        for (size_t j = 0; j < tokens; ++j) input[j] = static_cast<float>((j * 7 + i) % 11);
        check(moecclPassDispatch(passes[i]->it, input.data(), rows.data(), nullptr), comm);
        int64_t expected = 0;
        for (const auto& ofExpert : it.rowsOf(rank))
          expected += static_cast<int64_t>(ofExpert.size());
        checkThat(passes[i]->rows().rows == expected, "the rows of another routing");
        check(moecclPassCombine(passes[i]->it, rows.data(), output.data(), nullptr), comm);
        for (size_t j = 0; j < tokens; ++j) {
          const auto token = static_cast<int>(j / static_cast<size_t>(c.hidden));
          float sum = 0;
          for (int choice = 0; choice < c.choices; ++choice)
            if (it.experts[rank][token * c.choices + choice] >= 0) sum += 2;  // shards
          checkThat(output[j] == sum * input[j], "a sum of another routing");
        }
      }
      const moecclRoutePass_t ended = passes[1]->it;
      passes.erase(passes.begin() + 1);
      checkError(moecclPassCombine(ended, nullptr, nullptr, nullptr), moecclInvalidArgument,
                 nullptr, {"pass has ended"});
    });
  }
}

TEST(RouteLatency, SaysWhatItHasNot) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.mode = "latency";
    config.experts = 3;
    config.topK = 2;
    moecclRoute_t route = nullptr;
    const auto refuses = [&](const std::vector<std::string>& parts) {
      checkError(moecclRouteCreate(grid.it, &config, &route), moecclInvalidArgument, comm, parts);
    };
    refuses({"config.maxTokens is 0", "1 to 1024"});
    config.maxTokens = 4;
    config.mode = "slow";
    refuses({"config.mode is \"slow\"", "throughput, latency"});
    config.mode = "latency";
    config.weights = moecclRouteWeightsRows;
    refuses({"moecclRouteWeightsRows", "throughput mode"});
    config.weights = moecclRouteWeightsCombine;
    check(moecclRouteCreate(grid.it, &config, &route), comm);
    const int32_t chosen[4] = {0, 1, 2, 2};
    const float weights[4] = {1, 1, 1, 1};
    std::uint16_t buffer[16] = {};
    moecclRoutePass_t pass = nullptr;
    checkError(begin(route, 2, chosen, weights, nullptr, &pass), moecclInvalidArgument, comm,
               {"routing.experts[1][1] is 2 again"});
    check(begin(route, 1, chosen, weights, nullptr, &pass), comm);
    checkError(moecclPassCombine(pass, buffer + 2, buffer, nullptr), moecclInvalidUsage, comm,
               {"moecclPassDispatch"});
    // Room for 8 rows.
    checkError(moecclPassDispatch(pass, buffer + 7, buffer, nullptr), moecclInvalidArgument, comm,
               {"overlap"});
    check(moecclPassDispatch(pass, buffer + 8, buffer, nullptr), comm);
    checkError(moecclPassDispatchBackward(pass, buffer, nullptr, buffer + 8, nullptr, nullptr),
               moecclInvalidUsage, comm, {"no gradients"});
    checkError(moecclPassCombineBackward(pass, buffer + 8, buffer, buffer + 9, nullptr, nullptr),
               moecclInvalidUsage, comm, {"no gradients"});
    check(moecclPassEnd(pass));
    check(moecclRouteDestroy(route));
  });
}

// Ranks whose routes differ only in what messages would tell find out.
TEST(RouteLatency, OtherCallsThanTheOthers) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.mode = "latency";
    config.experts = 2;
    moecclRoute_t routes[2] = {};
    for (moecclRoute_t& route : routes) {
      ++config.maxTokens;
      check(moecclRouteCreate(grid.it, &config, &route), comm);
    }
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1};
    moecclRoutePass_t pass = nullptr;
    check(begin(routes[rank], 1, chosen, weights, nullptr, &pass), comm);
    std::uint16_t from[1] = {}, to[4] = {};
    checkError(moecclPassDispatch(pass, from, to, nullptr), moecclRemoteError, comm,
               {"token dispatch", "at most 1 tokens", "at most 2 tokens"});
    for (const moecclRoute_t route : routes) check(moecclRouteDestroy(route));
    throw Aborts{};
  });
}

// A call on a stream that failed has brought no rows, and there are no more calls.
TEST(RouteLatency, SaysNoCountsOfWhatFailed) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.mode = "latency";
    config.experts = 2;
    config.maxTokens = 1;
    // Rows of as many bytes; sums of others.
    moecclRoute_t routes[2] = {};
    for (moecclRoute_t& route : routes) {
      config.datatype = &route == routes ? moecclFloat32 : moecclBfloat16;
      config.hidden = &route == routes ? 2 : 4;
      check(moecclRouteCreate(grid.it, &config, &route), comm);
    }
    const moecclRoute_t route = routes[rank];
    moecclStream_t stream = nullptr;
    check(moecclStreamCreate(comm, &stream), comm);
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1}, from[2] = {};
    float to[4] = {}, back[2] = {};
    moecclRoutePass_t pass = nullptr, next = nullptr;
    check(begin(route, 1, chosen, weights, stream, &pass), comm);
    check(moecclPassDispatch(pass, from, to, stream), comm);
    check(moecclPassCombine(pass, to, back, stream), comm);
    const std::vector<std::string> parts = {"token dispatch", "rows of 8 bytes, sums in float32",
                                            "sums in bfloat16"};
    checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, parts);
    moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
    checkError(moecclPassGetRows(pass, &rows), moecclRemoteError, comm, parts);
    check(moecclPassEnd(pass), comm);
    checkError(begin(route, 1, chosen, weights, nullptr, &next), moecclRemoteError, comm, parts);
    for (const moecclRoute_t each : routes) check(moecclRouteDestroy(each));
    moecclStreamDestroy(stream);
    throw Aborts{};
  });
}

TEST(RouteLoads, CountChoicesAndRowsOfAllRanks) {
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
      Pass(comm, route.it, world.tokens(rank), world.experts[rank].data(), weights.data(), nullptr);
    // Passes that are open count too.
    const Pass first(comm, route.it, 0, nullptr, nullptr, nullptr),
        second(comm, route.it, world.tokens(rank), world.experts[rank].data(), weights.data(),
               nullptr);
    std::vector<int64_t> choices(5, -1), rows(3, -1);
    check(moecclRouteGetLoads(route.it, choices.data(), rows.data(), 1), comm);
    for (int expert = 0; expert < 5; ++expert) {
      int64_t expected = 0;
      for (const auto& theirs : world.experts) expected += 3 * std::ranges::count(theirs, expert);
      checkThat(choices[expert] == expected, "another number of choices");
    }
    for (int each = 0; each < 3; ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 3 * static_cast<int64_t>(expert.size());
      checkThat(rows[each] == expected, "another number of rows");
    }
    check(moecclRouteGetLoads(route.it, choices.data(), nullptr, 0), comm);
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

TEST(RouteErrors, NameWhatIsWrong) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    const auto create = [&](auto change, const std::vector<std::string>& parts) {
      moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
      change(config);
      moecclRoute_t none = nullptr;
      checkError(moecclRouteCreate(grid.it, &config, &none), moecclInvalidArgument, comm, parts);
    };
    create([](auto& it) { it.experts = 0; }, {"config.experts is 0", "32768"});
    create([](auto& it) { it.topK = 129; }, {"config.topK is 129", "128"});
    create([](auto& it) { it.hidden = 0; }, {"config.hidden is 0"});
    create([](auto& it) { it.datatype = moecclInt8; }, {"config.datatype is 0"});
    create([](auto& it) { it.tokenDatatype = moecclFloat64; }, {"config.tokenDatatype is 8"});
    create([](auto& it) { it.datatype = moecclFloat8e4m3; }, {"config.datatype is", "Bfloat16"});
    create([](auto& it) { it.mode = "fast"; }, {"config.mode is \"fast\"", "throughput, latency"});
    create([](auto& it) { it.weights = moecclRouteNumWeights; }, {"config.weights is 3", "0 to 2"});
    create([](auto& it) { it.algorithm = "ring"; }, {"\"ring\"", "node, rank, flat"});
    create([](auto& it) { it.magic = 0; }, {"MOECCL_ROUTE_CONFIG_INITIALIZER"});
    create([](auto& it) { it.numBuckets = 2; }, {"config.numBuckets is 2", "only latency mode"});
    create(
        [](auto& it) {
          it.tokenDatatype = moecclFloat8e4m3;
          it.hidden = 100;
        },
        {"config.hidden is 100", "multiple of 128"});
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    checkError(moecclRouteCreate(grid.it, &config, nullptr), moecclInvalidArgument, comm,
               {"route is NULL"});
    config.experts = 3;
    config.topK = 2;
    config.maxTokens = 4;
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid.it, &config, &route), comm);
    std::uint16_t buffer[8] = {};
    const int32_t chosen[4] = {0, 1, 2, -2};
    const float weights[4] = {1, 1, 1, 1};
    moecclRoutePass_t pass = nullptr;
    const auto refuses = [&](int64_t tokens, const int32_t* which, const float* with,
                             const std::vector<std::string>& parts) {
      checkError(begin(route, tokens, which, with, nullptr, &pass), moecclInvalidArgument, comm,
                 parts);
    };
    refuses(2, chosen, weights, {"routing.experts[1][1] is -2", "0 to 2"});
    refuses(5, chosen, weights, {"routing.tokens is 5", "0 to 4"});
    refuses(-1, chosen, weights, {"routing.tokens is -1"});
    refuses(1, nullptr, weights, {"routing.experts is NULL"});
    refuses(1, chosen, nullptr, {"routing.weights is NULL"});
    checkError(moecclRouteBegin(route, nullptr, nullptr, &pass), moecclInvalidArgument, comm,
               {"routing is NULL"});
    const moecclRouting_t empty = MOECCL_ROUTING_INITIALIZER;
    checkError(moecclRouteBegin(route, &empty, nullptr, nullptr), moecclInvalidArgument, comm,
               {"pass is NULL"});
    checkError(moecclRouteGetInfo(route, nullptr), moecclInvalidArgument, comm, {"info is NULL"});
    check(begin(route, 1, chosen, weights, nullptr, &pass), comm);
    checkError(moecclPassGetRows(pass, nullptr), moecclInvalidArgument, comm, {"rows is NULL"});
    checkError(moecclPassDispatch(pass, buffer, nullptr, nullptr), moecclInvalidArgument, comm,
               {"rows is NULL", "4 bytes"});
    checkError(moecclPassCombine(pass, buffer, buffer + 1, nullptr), moecclInvalidArgument, comm,
               {"rows and output overlap"});
    checkError(moecclPassCombineBackward(pass, buffer, buffer + 1, buffer + 3, nullptr, nullptr),
               moecclInvalidArgument, comm, {"weightGradients is NULL"});
    float gradient = 0;
    checkError(moecclPassDispatchBackward(pass, buffer, &gradient, buffer + 2, nullptr, nullptr),
               moecclInvalidArgument, comm, {"rowWeightGradients", "moecclRouteWeightsRows"});
    check(moecclPassEnd(pass), comm);
    checkError(moecclPassEnd(pass), moecclInvalidArgument, nullptr, {"pass has ended"});
    check(moecclPassEnd(nullptr));
    checkError(moecclPassDispatch(nullptr, buffer, buffer + 1, nullptr), moecclInvalidArgument,
               nullptr, {"pass is NULL"});
    check(moecclRouteDestroy(route));
    checkError(moecclPassEnd(pass), moecclInvalidArgument, nullptr, {"pass is no pass"});
    checkError(moecclRouteDestroy(route), moecclInvalidArgument, nullptr, {"route is no route"});
    check(moecclRouteDestroy(nullptr));
    checkError(begin(nullptr, 0, nullptr, nullptr, nullptr, &pass), moecclInvalidArgument, nullptr,
               {"route is NULL"});
  });
}

// What only one rank can see all of them learn, with its text; the next pass is as any other.
TEST(RouteErrors, OneRankWithAWrongRouting) {
  struct Try {
    int64_t tokens;
    std::vector<int32_t> experts;
    const char* says;
    const char* error = nullptr;
  };
  const Try tries[] = {{0, {}, "the gate has no values", "the gate has no values"},
                       {2, {0, 1, 9, 1}, "routing.experts[1][0] is 9"},
                       {-3, {}, "routing.tokens is -3"},
                       {1, {}, "routing.experts is NULL"}};
  for (const std::vector<int>& nodes : {std::vector<int>{3}, {2, 2}}) {
    Case c;
    c.nodes = nodes;
    const World world(c);
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      const Route route(grid.it, c);
      const std::vector<float> ones(world.experts[rank].size(), 1);
      for (const Try& it : tries) {
        moecclRoutePass_t pass = nullptr;
        const bool wrong = rank == 1;
        moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
        routing.tokens = wrong ? it.tokens : world.tokens(rank);
        routing.experts = wrong ? it.experts.data() : world.experts[rank].data();
        if (wrong && it.experts.empty()) routing.experts = nullptr;
        routing.weights = ones.data();
        routing.error = wrong ? it.error : nullptr;
        const moecclResult_t result = moecclRouteBegin(route.it, &routing, nullptr, &pass);
        checkError(result, wrong ? moecclInvalidArgument : moecclRemoteError, comm,
                   {"moecclRouteBegin", it.says});
        exercise(world, comm, route.it, rank);
      }
    });
  }
}

// A pass or a stream that only one rank has wrong is told, as its routing is.
TEST(RouteErrors, OneRankWithAWrongArgument) {
  Case c;
  c.nodes = {2, 1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    const std::vector<float> ones(world.experts[rank].size(), 1);
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    routing.tokens = world.tokens(rank);
    routing.experts = world.experts[rank].data();
    routing.weights = ones.data();
    const bool wrong = rank == 1;
    moecclRoutePass_t pass = nullptr;
    const auto refused = [&](moecclStream_t stream, moecclRoutePass_t* to, const char* says) {
      checkError(moecclRouteBegin(route.it, &routing, stream, to),
                 wrong ? moecclInvalidArgument : moecclRemoteError, comm,
                 {"moecclRouteBegin", says});
      checkThat(pass == nullptr, "a pass was made");
      exercise(world, comm, route.it, rank);
    };
    refused(nullptr, wrong ? nullptr : &pass, "pass is NULL");
    refused(wrong ? &routing : nullptr, &pass, "stream");
  });
}

TEST(RouteErrors, OneRankWithAnotherConfig) {
  Case c;
  c.nodes = {2, 1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = rank == 2 ? 6 : 5;
    moecclRoute_t route = nullptr;
    checkError(moecclRouteCreate(grid.it, &config, &route), moecclInvalidUsage, comm,
               {"experts is 5 on rank 0 and 6 on rank 2"});
    config.experts = 5;
    config.weights = rank == 1 ? moecclRouteWeightsNone : moecclRouteWeightsCombine;
    checkError(moecclRouteCreate(grid.it, &config, &route), moecclInvalidUsage, comm,
               {"weights is moecclRouteWeightsCombine on rank 0 and moecclRouteWeightsNone"});
    config.weights = moecclRouteWeightsCombine;
    config.experts = rank == 1 ? -5 : 5;
    checkError(moecclRouteCreate(grid.it, &config, &route),
               rank == 1 ? moecclInvalidArgument : moecclRemoteError, comm,
               {"config.experts is -5"});
    config.experts = 5;
    check(moecclRouteCreate(grid.it, &config, &route), comm);
    check(moecclRouteDestroy(route));
  });
}

// Ranks that begin passes of different routes, though all of them would tell as much.
TEST(RouteErrors, PassesOfOtherRoutes) {
  struct Other {
    const char* says;
    void (*change)(moecclRouteConfig_t& config);
  };
  constexpr Other kOthers[] = {
      {"Begin of 2 of 64 experts", [](auto& it) { it.experts = 64; }},
      {"Begin of 3 of 8 experts", [](auto& it) { it.topK = 3; }},
      {"4 x float32 to bfloat16", [](auto& it) { it.tokenDatatype = moecclFloat32; }},
      {"9 x bfloat16 to bfloat16", [](auto& it) { it.hidden = 9; }},
      {"4 x bfloat16 to float16",
       [](auto& it) {
         it.tokenDatatype = moecclBfloat16;
         it.datatype = moecclFloat16;
       }},
      {"to bfloat16, weights with rows", [](auto& it) { it.weights = moecclRouteWeightsRows; }},
      {"to bfloat16, auto", [](auto& it) { it.weights = moecclRouteWeightsNone; }},
      {"weighted, node", [](auto& it) { it.algorithm = "node"; }},
      {"auto, at most 9 rows", [](auto& it) { it.maxRows = 9; }},
      {"auto, aligned to 4", [](auto& it) { it.alignment = 4; }},
      {"auto, sent as float8e5m2", [](auto& it) {
         it.hidden = 128;
         it.wire = moecclFloat8e5m2;
       }}};
  Case c;
  c.nodes = {2, 2};
  const World world(c);
  for (const Other& other : kOthers)
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
      config.experts = 8;
      config.topK = 2;
      config.hidden = 4;
      moecclRoute_t routes[2] = {};
      check(moecclRouteCreate(grid.it, &config, &routes[0]), comm);
      other.change(config);
      check(moecclRouteCreate(grid.it, &config, &routes[1]), comm);
      moecclRoutePass_t pass = nullptr;
      checkError(begin(routes[rank == 1], 0, nullptr, nullptr, nullptr, &pass), moecclRemoteError,
                 comm,
                 {"a route's Begin of 2 of 8 experts, 4 x bfloat16 to bfloat16, weighted, auto",
                  other.says});
      for (const moecclRoute_t route : routes) check(moecclRouteDestroy(route));
      throw Aborts{};
    });
}

// A rank that makes another pass than the others, of rows that are as large.
TEST(RouteErrors, OtherCallsThanTheOthers) {
  struct Pair {
    moecclResult_t (*calls[2])(moecclRoutePass_t pass, const void* from, void* to,
                               moecclStream_t stream);
    std::vector<std::string> parts;
  };
  const auto back = [](moecclRoutePass_t pass, const void* from, void* to, moecclStream_t stream) {
    return moecclPassCombineBackward(pass, from, nullptr, to, nullptr, stream);
  };
  const auto dispatchBack = [](moecclRoutePass_t pass, const void* from, void* to,
                               moecclStream_t stream) {
    return moecclPassDispatchBackward(pass, from, nullptr, to, nullptr, stream);
  };
  const Pair pairs[] = {
      {{moecclPassDispatch, moecclPassCombine}, {"token dispatch", "token combine"}},
      {{moecclPassDispatch, back}, {"token dispatch", "inside moecclPassCombineBackward"}},
      {{moecclPassCombine, dispatchBack}, {"token combine", "inside moecclPassDispatchBackward"}}};
  Case c;
  c.nodes = {2};
  const World world(c);
  for (const Pair& pair : pairs)
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
      config.experts = 2;
      config.weights = moecclRouteWeightsNone;
      moecclRoute_t route = nullptr;
      check(moecclRouteCreate(grid.it, &config, &route), comm);
      const int32_t chosen[1] = {1 - rank};
      moecclRoutePass_t pass = nullptr;
      check(begin(route, 1, chosen, nullptr, nullptr, &pass), comm);
      std::uint16_t from[1] = {}, to[1] = {};
      checkError(pair.calls[rank](pass, from, to, nullptr), moecclRemoteError, comm, pair.parts);
      check(moecclRouteDestroy(route));
      throw Aborts{};
    });
}

}  // namespace
}  // namespace moeccl::test

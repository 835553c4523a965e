// Routes with schedules: MP groups, capacity, float64, on hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/api/schedule_pass.h"

namespace moeccl::test {
namespace {

// Over what the library chooses, or MOECCL_TEST_PROCESSES says.
constexpr Backend kBackends[] = {
    kLoopback, {"ucxThreads", false, true}, {"processes", true, false}};
constexpr moecclDataType_t kDatatypes[] = {moecclFloat32, moecclFloat64, moecclFloat16,
                                           moecclBfloat16};
constexpr moecclGridShape_t kFour{2, 2, 2, moecclOrderEspEp};

// A grid on the ranks of a job, and a stream.
void onGrid(const moecclGridShape_t& shape, const Backend& backend, std::vector<int> nodes,
            const std::function<void(moecclComm_t, moecclGrid_t, int, moecclStream_t)>& body) {
  const Job job{.ranks = shape.nEp * shape.nEsp,
                .nodes = std::move(nodes),
                .algorithms = {},
                .processes = backend.processes,
                .ucx = backend.ucx};
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, shape);
    moecclStream_t stream = nullptr;
    check(moecclStreamCreate(comm, &stream), comm);
    body(comm, grid, rank, stream);
    check(moecclStreamDestroy(stream), comm);
    check(moecclGridDestroy(grid), comm);
  });
}
void onGrid(const moecclGridShape_t& shape,
            const std::function<void(moecclComm_t, moecclGrid_t, int)>& body) {
  onGrid(shape, kLoopback, {}, [&](moecclComm_t comm, moecclGrid_t grid, int rank, moecclStream_t) {
    body(comm, grid, rank);
  });
}

struct Rank {
  moecclComm_t comm;
  moecclGrid_t grid;
  int rank;
};

bool isSame(const moecclGridShape_t& a, const moecclGridShape_t& b) {
  return a.nMp == b.nMp && a.nEp == b.nEp && a.nEsp == b.nEsp && a.order == b.order;
}

TEST(RouteSchedules, AreExactInEveryDatatype) {
  const std::vector<Scheduled> all = scheduledCases(kDatatypes);
  for (auto begin = all.begin(); begin != all.end() && !HasFailure();) {
    const auto end = std::find_if(begin, all.end(),
                                  [&](const Scheduled& c) { return !isSame(c.grid, begin->grid); });
    onGrid(begin->grid, kLoopback, {},
           [&](moecclComm_t comm, moecclGrid_t grid, int rank, moecclStream_t stream) {
             HostMemory memory;
             for (auto c = begin; c != end; ++c)
               exercise(*c, comm, grid, rank, memory, (c - begin) % 2 == 0 ? nullptr : stream);
           });
    begin = end;
  }
}

class DrawnTokens : public testing::TestWithParam<std::tuple<Backend, moecclGridShape_t>> {};

// Each MP group has another number of tokens in each pass.
TEST_P(DrawnTokens, AreExactUnderEverySchedule) {
  const auto& [backend, shape] = GetParam();
  const int last = shape.nEp * shape.nEsp - 1;
  for (const std::vector<int>& nodes : {std::vector<int>{}, {1, last}})
    onGrid(shape, backend, nodes,
           [&](moecclComm_t comm, moecclGrid_t grid, int rank, moecclStream_t stream) {
             HostMemory memory;
             Scheduled c{.grid = std::get<1>(GetParam())};
             c.experts = 2 * c.grid.nEp + c.grid.nEp;
             for (const double capacityFactor : {0.0, 0.75})
               for (const bool bounded : {false, true}) {
                 c.capacityFactor = capacityFactor;
                 c.capacityGroups = capacityFactor > 0 && bounded ? 2 * c.grid.nMp : 0;
                 c.minCapacity = capacityFactor > 0 && bounded ? 2 : 0;
                 c.maxTokens = bounded ? 64 : 0;
                 for (const char* schedule : schedulesOf(c)) {
                   c.schedule = schedule;
                   exerciseDrawn(c, comm, grid, rank, 20, memory, bounded ? stream : nullptr);
                 }
               }
           });
}

INSTANTIATE_TEST_SUITE_P(
    Backends, DrawnTokens,
    testing::Combine(testing::ValuesIn(kBackends),
                     testing::Values(moecclGridShape_t{2, 2, 2, moecclOrderEspEp},
                                     moecclGridShape_t{1, 2, 2, moecclOrderEpEsp},
                                     moecclGridShape_t{4, 4, 1, moecclOrderEspEp},
                                     moecclGridShape_t{2, 2, 3, moecclOrderEpEsp})),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" + std::to_string(info.index);
    });

// The gradients of results without weights are not multiplied by any, whatever brings the rows.
TEST(RouteSchedules, SumWithoutWeightsAcrossNodes) {
  constexpr moecclGridShape_t kGrid{1, 4, 1, moecclOrderEspEp};
  onGrid(kGrid, kLoopback, {2, 2},
         [&](moecclComm_t comm, moecclGrid_t grid, int rank, moecclStream_t stream) {
           HostMemory memory;
           Scheduled c{.grid = kGrid, .choices = 4, .weighs = false};
           for (const char* schedule : schedulesOf(c)) {
             c.schedule = schedule;
             exerciseDrawn(c, comm, grid, rank, 10, memory, stream);
           }
         });
}

// Experts see each token N_MP times under the baseline: in inference alone.
TEST(RouteSchedules, InferUnderTheBaselineWithMpGroups) {
  const Scheduled c{.grid = kFour, .schedule = "baseline", .training = false};
  onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    HostMemory memory;
    for (const double capacityFactor : {0.0, 0.5}) {
      Scheduled with = c;
      with.capacityFactor = capacityFactor;
      exerciseDrawn(with, comm, grid, rank, 10, memory, nullptr);
    }
  });
}

// A route of this kind, with one pass begun by all ranks.
struct Begun {
  Begun(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, int rank) {
    const moecclRouteConfig_t config = configOf(c);
    check(moecclRouteCreate(grid, &config, &route), comm);
    pass.emplace(c, comm, route, rank, std::vector<int64_t>(static_cast<size_t>(c.groups()), 9), 0u,
                 memory, nullptr);
  }
  ~Begun() { moecclRouteDestroy(route); }
  HostMemory memory;
  moecclRoute_t route = nullptr;
  std::optional<SchedulePass> pass;
};

// By prediction where nobody says which; MP groups, a capacity and float64 alone need one.
TEST(RouteSchedules, AreChosenWhereARouteNeedsOne) {
  struct Try {
    moecclGridShape_t grid;
    double capacityFactor;
    moecclDataType_t datatype;
    bool needs;
  };
  for (const Try& it : {Try{{2, 2, 2, moecclOrderEspEp}, 0, moecclFloat32, true},
                        {{1, 4, 1, moecclOrderEspEp}, 1, moecclFloat32, true},
                        {{1, 4, 1, moecclOrderEspEp}, 0, moecclFloat64, true},
                        {{1, 4, 1, moecclOrderEspEp}, 0, moecclFloat32, false}})
    onGrid(it.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
      const Scheduled c{
          .grid = it.grid, .datatype = it.datatype, .capacityFactor = it.capacityFactor};
      Begun begun(c, comm, grid, rank);
      const std::string name = begun.pass->rows().algorithm;
      const std::string schedules[] = {"baseline", "S1", "S2", "PPMoE"};
      checkThat((std::ranges::count(schedules, name) == 1) == it.needs, "brought by " + name);
      std::size_t bytes = 0;
      check(moecclRouteExplain(begun.route, nullptr, &bytes));
      std::string text(bytes, 'x');
      check(moecclRouteExplain(begun.route, text.data(), &bytes));
      checkThat(text.back() == '\0' && text.find(name) != std::string::npos, text);
      begun.pass->both();
    });
}

// A name in the config comes first.
TEST(RouteSchedules, FollowTheEnvironmentWhereTheConfigNamesNone) {
  const auto with = [](const char* environment, const std::function<void(Rank)>& body) {
    ASSERT_EQ(setenv("MOECCL_SCHEDULE", environment, 1), 0);
    onGrid(kFour, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
      body({comm, grid, rank});
    });
    ASSERT_EQ(unsetenv("MOECCL_SCHEDULE"), 0);
  };
  Scheduled c{.grid = kFour, .capacityFactor = 1};
  for (const char* environment : {"S1", "S2"})
    with(environment, [&](Rank at) {
      for (const char* named : {"", "auto", "S1"}) {
        Scheduled its = c;
        its.schedule = named;
        Begun begun(its, at.comm, at.grid, at.rank);
        const std::string expected = named[0] == 'S' ? named : environment;
        checkThat(begun.pass->rows().algorithm == expected, "another than " + expected);
      }
    });
  with("S3", [&](Rank at) {
    const moecclRouteConfig_t config = configOf(c);
    moecclRoute_t route = nullptr;
    checkError(moecclRouteCreate(at.grid, &config, &route), moecclInvalidArgument, at.comm,
               {"MOECCL_SCHEDULE is \"S3\""});
  });
}

TEST(RouteSchedules, KeepNothingForGradientsInInference) {
  const Scheduled c{.grid = {1, 2, 1, moecclOrderEspEp}, .schedule = "S1", .training = false};
  onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    Begun begun(c, comm, grid, rank);
    begun.pass->forward();
    std::vector<float> room(4096);
    float* const at = room.data();
    checkError(
        moecclPassCombineBackward(begun.pass->get(), at, at + 1024, at + 2048, at + 3072, nullptr),
        moecclInvalidUsage, comm, {"config.training"});
    begun.pass->forward();
  });
}

TEST(RouteScheduleErrors, NameTheFieldThatIsWrong) {
  struct Try {
    moecclGridShape_t grid;
    void (*change)(moecclRouteConfig_t& config);
    std::vector<std::string> parts;
  };
  constexpr moecclGridShape_t kPlain{1, 2, 2, moecclOrderEspEp};
  const Try tries[] = {
      {kFour, [](auto& it) { it.capacityFactor = -1; }, {"config.capacityFactor is -1", "above 0"}},
      {kFour,
       [](auto& it) { it.capacityFactor = std::numeric_limits<double>::infinity(); },
       {"config.capacityFactor is inf", "finite"}},
      {kFour,
       [](auto& it) { it.capacityFactor = std::numeric_limits<double>::quiet_NaN(); },
       {"config.capacityFactor is nan", "finite"}},
      {kFour, [](auto& it) { it.capacityGroups = -1; }, {"config.capacityGroups is -1"}},
      {kFour, [](auto& it) { it.minCapacity = -1; }, {"config.minCapacity is -1"}},
      {kFour,
       [](auto& it) { it.capacityFactor = 0, it.capacityGroups = 2; },
       {"config.capacityGroups is 2", "must be 0"}},
      {kFour,
       [](auto& it) { it.capacityFactor = 0, it.minCapacity = 2; },
       {"config.minCapacity is 2", "must be 0"}},
      {kFour, [](auto& it) { it.sharedTokens = 2; }, {"config.sharedTokens is 2", "0 to 1"}},
      {kFour, [](auto& it) { it.sharedTokens = 0; }, {"config.sharedTokens must be 1", "nMp is 2"}},
      {kFour,
       [](auto& it) { it.schedule = "S3"; },
       {"config.schedule is \"S3\"", "baseline", "PPMoE"}},
      {kFour, [](auto& it) { it.schedule = "PPMoE"; }, {"PPMoE", "nMp is 2", "4"}},
      {kFour, [](auto& it) { it.schedule = "S2", it.capacityFactor = 0; }, {"S2", "capacity"}},
      {kFour,
       [](auto& it) { it.schedule = "S1", it.capacityGroups = 3; },
       {"config.capacityGroups is 3", "multiple of", "2"}},
      {kFour, [](auto& it) { it.schedule = "baseline"; }, {"baseline", "N_MP"}},
      {kFour, [](auto& it) { it.experts = 7; }, {"config.experts must be a multiple of", "nEp, 2"}},
      {kFour,
       [](auto& it) { it.tokenDatatype = moecclFloat16; },
       {"config.tokenDatatype must be 0"}},
      {kFour,
       [](auto& it) { it.weights = moecclRouteWeightsRows; },
       {"config.weights must be moecclRouteWeightsCombine or None"}},
      {kFour, [](auto& it) { it.expertElements = -1; }, {"config.expertElements is -1"}},
      {kFour,
       [](auto& it) { it.maxTokens = std::numeric_limits<int64_t>::max(); },
       {"config.maxTokens is 9223372036854775807", "address space"}},
      {kFour, [](auto& it) { it.training = 2; }, {"config.training is 2", "0 to 1"}},
      {kFour, [](auto& it) { it.learn = 2; }, {"config.learn is 2", "0 to 1"}},
      {kPlain,
       [](auto& it) { it.mode = "latency", it.maxTokens = 4; },
       {"a capacity", "config.mode must be \"throughput\""}},
      {kPlain,
       [](auto& it) {
         it.mode = "latency", it.maxTokens = 4, it.capacityFactor = 0;
         it.datatype = moecclFloat64;
       },
       {"config.datatype is 8"}},
      {kPlain,
       [](auto& it) {
         it.mode = "latency", it.maxTokens = 4, it.capacityFactor = 0, it.schedule = "S1";
       },
       {"a schedule", "config.mode must be \"throughput\""}},
  };
  for (const Try& it : tries)
    onGrid(it.grid, [&](moecclComm_t comm, moecclGrid_t grid, int) {
      moecclRouteConfig_t config = configOf({.grid = it.grid, .capacityFactor = 1});
      moecclRoute_t route = nullptr;
      it.change(config);
      checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidArgument, comm, it.parts);
    });
}

TEST(RouteScheduleErrors, NameTheFieldThatDiffers) {
  struct Try {
    void (*change)(moecclRouteConfig_t& config);
    const char* says;
  };
  const Try tries[] = {
      {[](auto& it) { it.capacityFactor = 1.5; },
       "capacityFactor is 1 on rank 0 and 1.5 on rank 2"},
      {[](auto& it) { it.capacityGroups = 4; }, "capacityGroups is 2 on rank 0 and 4 on rank 2"},
      {[](auto& it) { it.minCapacity = 3; }, "minCapacity is 0 on rank 0 and 3 on rank 2"},
      {[](auto& it) { it.schedule = "S2"; },
       "schedule (config.schedule, or MOECCL_SCHEDULE) is auto on rank 0 and S2 on rank 2"},
      {[](auto& it) { it.expertElements = 8; }, "expertElements is 0 on rank 0 and 8 on rank 2"},
      {[](auto& it) { it.training = 0; }, "training is 1 on rank 0 and 0 on rank 2"},
      {[](auto& it) { it.learn = 1; }, "learn is 0 on rank 0 and 1 on rank 2"},
      {[](auto& it) { it.datatype = moecclFloat16; },
       "datatype is float32 on rank 0 and float16 on rank 2"}};
  for (const Try& it : tries)
    onGrid(kFour, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
      moecclRouteConfig_t config =
          configOf({.grid = kFour, .capacityFactor = 1, .capacityGroups = 2});
      if (rank == 2) it.change(config);
      moecclRoute_t route = nullptr;
      checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidUsage, comm,
                 {"different configs", it.says});
    });
  // Where it makes no difference, ranks still say the same.
  constexpr moecclGridShape_t kPlain{1, 4, 1, moecclOrderEspEp};
  onGrid(kPlain, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    moecclRouteConfig_t config = configOf({.grid = kPlain});
    config.sharedTokens = rank == 2 ? 1 : 0;
    moecclRoute_t route = nullptr;
    checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidUsage, comm,
               {"sharedTokens is 0 on rank 0 and 1 on rank 2"});
  });
  onGrid(kPlain, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    moecclRouteConfig_t config = configOf({.grid = kPlain});
    config.hidden = 128;
    config.wire = rank == 2 ? moecclFloat8e4m3 : moecclDataType_t{};
    moecclRoute_t route = nullptr;
    checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidUsage, comm,
               {"wire is 0 on rank 0 and float8e4m3 on rank 2"});
  });
}

// Predictions alone read their size.
TEST(RouteSchedules, TakeExpertsOfAnySize) {
  constexpr moecclGridShape_t kSharded{1, 2, 2, moecclOrderEspEp};
  onGrid(kSharded, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    const Scheduled c{.grid = kSharded, .capacityFactor = 1};
    moecclRouteConfig_t config = configOf(c);
    config.expertElements = std::numeric_limits<int64_t>::max();
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid, &config, &route), comm);
    HostMemory memory;
    SchedulePass(c, comm, route, rank, std::vector<int64_t>(4, 5), 0, memory, nullptr).both();
    check(moecclRouteDestroy(route));
  });
}

// Ranks come here all, or the communicator is revoked. So a revoke meets what comes next.
void meet(std::atomic<int>& here, const Scheduled& c, moecclComm_t comm) {
  moecclResult_t state = moecclSuccess;
  for (++here; here < c.ranks() && state == moecclSuccess; std::this_thread::yield())
    check(moecclCommGetAsyncError(comm, &state));
}

// What only one rank can see all of them learn, with its text. Where Begin tells nothing, it
// revokes the communicator.
TEST(RouteScheduleErrors, OneRankWithAWrongRouting) {
  struct Try {
    int64_t tokens;
    std::vector<int32_t> experts;
    const char* says;
    const char* error = nullptr;
  };
  const Try tries[] = {{2, {0, 1, 99, -1}, "routing.experts[1][0] is 99"},
                       {2, {0, 1, -2, -1}, "routing.experts[1][0] is -2"},
                       {2, {3, -1, 2, 2}, "routing.experts[1][1] is 2"},
                       {-3, {0}, "routing.tokens is -3"},
                       {0, {0}, "the gate has no values", "the gate has no values"}};
  for (const int64_t maxTokens : {0, 64})
    for (const double capacityFactor : {0.0, 1.0})
      for (const Try& it : tries) {
        const Scheduled c{.grid = kFour,
                          .schedule = "S1",
                          .capacityFactor = capacityFactor,
                          .maxTokens = maxTokens};
        SCOPED_TRACE(textOf(c) + ": " + it.says);
        std::atomic<int> here{0};
        onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
          const bool wrong = rank == 1;
          Begun begun(c, comm, grid, rank);
          meet(here, c, comm);
          const std::vector<int32_t> experts = wrong ? it.experts : std::vector<int32_t>(4, -1);
          const std::vector<float> weights(4, 1), tokens(4 * SchedulePass::kHidden);
          moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
          routing.tokens = wrong ? it.tokens : 2;
          routing.experts = experts.data();
          routing.weights = weights.data();
          routing.error = wrong ? it.error : nullptr;
          moecclRoutePass_t pass = nullptr;
          moecclResult_t result = moecclRouteBegin(begun.route, &routing, nullptr, &pass);
          if (wrong)
            checkError(result, moecclInvalidArgument, comm, {"moecclRouteBegin", it.says});
          else if (result == moecclSuccess) {
            checkThat(maxTokens > 0, "another rank's error was not told");
            std::vector<float> rows(65536);
            result = moecclPassDispatch(pass, tokens.data(), rows.data(), nullptr);
          }
          if (!wrong) checkError(result, moecclRemoteError, comm, {it.says, "rank 1"});
          moecclResult_t state = moecclSuccess;
          check(moecclCommGetAsyncError(comm, &state));
          if (state == moecclSuccess) return begun.pass->both();
          checkThat(maxTokens > 0, "the communicator is lost");
          check(moecclPassEnd(pass));
          throw Aborts{};
        });
      }
}

TEST(RouteScheduleErrors, AGradientBeforeItsCombine) {
  const Scheduled c{.grid = kFour, .schedule = "S1", .capacityFactor = 1};
  onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    Begun begun(c, comm, grid, rank);
    const std::vector<int32_t> experts{0, 1, 2, -1};
    const std::vector<float> weights(4, 1), gradients(2 * SchedulePass::kHidden), kept(65536);
    std::vector<float> rows(65536), ofWeights(4);
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    routing.tokens = 2;
    routing.experts = experts.data();
    routing.weights = weights.data();
    moecclRoutePass_t pass = nullptr;
    check(moecclRouteBegin(begun.route, &routing, nullptr, &pass), comm);
    checkError(moecclPassCombineBackward(pass, gradients.data(), kept.data(), rows.data(),
                                         ofWeights.data(), nullptr),
               moecclInvalidUsage, comm, {"moecclPassCombine"});
    check(moecclPassEnd(pass));
    begun.pass->both();
  });
}

TEST(RouteScheduleErrors, AnMpGroupWithDifferentNumbersOfTokens) {
  const Scheduled c{.grid = kFour, .capacityFactor = 1};
  onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    Begun begun(c, comm, grid, rank);
    const std::vector<int32_t> none(6, -1);
    const std::vector<float> weights(none.size(), 1);
    moecclRoutePass_t pass = nullptr;
    checkError(begin(begun.route, rank == 2 ? 3 : 2, none.data(), weights.data(), nullptr, &pass),
               moecclInvalidArgument, comm,
               {"routing.tokens is 3 on rank 2 and 2 on rank 3", "bring the same tokens"});
    begun.pass->both();
  });
}

// Where Begin asks no other rank, those of an MP group ask each other. Ranks of other groups learn
// it from them.
TEST(RouteScheduleErrors, AnMpGroupWithDifferentNumbersOfTokensBelowMaxTokens) {
  const Scheduled tries[] = {
      {.grid = kFour, .schedule = "S1"},
      {.grid = kFour, .schedule = "S1", .capacityFactor = 1},
      {.grid = kFour, .schedule = "S2", .capacityFactor = 1},
      {.grid = kFour, .schedule = "baseline", .capacityFactor = 1, .training = false},
      {.grid = {4, 2, 2, moecclOrderEspEp}, .schedule = "PPMoE"}};
  for (Scheduled c : tries)
    for (const int64_t tokens : {1, 63}) {
      c.maxTokens = 64;
      SCOPED_TRACE(textOf(c));
      const int first = 2 / c.grid.nMp * c.grid.nMp;
      const auto saying = [](int64_t count, int rank) {
        return std::to_string(count) + " on rank " + std::to_string(rank);
      };
      const std::string says =
          "routing.tokens is " + (first == 2 ? saying(tokens, 2) + " and " + saying(9, 3)
                                             : saying(9, 0) + " and " + saying(tokens, 2));
      std::atomic<int> here{0};
      onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
        Begun begun(c, comm, grid, rank);
        meet(here, c, comm);
        const std::vector<int32_t> none(64 * 2, -1);
        const std::vector<float> weights(none.size(), 1), sent(64 * SchedulePass::kHidden);
        std::vector<float> rows(65536);
        moecclRoutePass_t pass = nullptr;
        moecclResult_t result =
            begin(begun.route, rank == 2 ? tokens : 9, none.data(), weights.data(), nullptr, &pass);
        const bool ofGroup = rank / c.grid.nMp == 2 / c.grid.nMp;
        checkThat(!ofGroup || result != moecclSuccess, "the group's ranks have begun");
        if (result == moecclSuccess)
          result = moecclPassDispatch(pass, sent.data(), rows.data(), nullptr);
        checkThat(result == moecclRemoteError || (ofGroup && result == moecclInvalidArgument),
                  "another result");
        checkError(result, result, comm, {says, "bring the same tokens"});
        check(moecclPassEnd(pass));
        throw Aborts{};
      });
    }
}

TEST(RouteScheduleErrors, RoutesWithoutAScheduleSaveNone) {
  const Scheduled c{.grid = {1, 2, 1, moecclOrderEspEp}};
  onGrid(c.grid, [&](moecclComm_t comm, moecclGrid_t grid, int rank) {
    const moecclRouteConfig_t config = configOf(c);
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid, &config, &route), comm);
    char text[256];
    std::size_t bytes = sizeof text;
    checkError(moecclRouteExplain(route, text, &bytes), moecclInvalidUsage, comm,
               {"no pass has begun"});
    check(moecclRouteDestroy(route));
    const Begun begun(c, comm, grid, rank);
    checkError(moecclRouteSave(begun.route, text, &bytes), moecclInvalidUsage, comm,
               {"no schedule"});
    checkError(moecclRouteRestore(begun.route, "text"), moecclInvalidUsage, comm, {"no schedule"});
  });
}

}  // namespace
}  // namespace moeccl::test

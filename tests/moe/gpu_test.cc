// The layer on GPU communicators, with doubles for CUDA and NCCL: ranks are threads, each with a
// device of its own, on whose memory and streams everything lies. The doubles run what is queued
// late and in random order, and find fault with what nothing orders; results are held against the
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/gates/gate.h"
#include "tests/moe/on_gpus.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

void trainOnGpus(const Task& task, const GpusOfTest& how, const Turn& turn) {
  SCOPED_TRACE(nameOf(turn.schedule));
  onGpus(task.problem, how, [&](Device& device, moecclGrid_t grid, int rank) {
    train(device, grid, rank, task, turn);
  });
}

// There is no float64 on GPUs, and no swiglu. Gelu stands for it: like swiglu and unlike relu it
// has no corner, on whose two sides two orders of summing find two gradients.
std::vector<Problem> offeredOnGpus(std::vector<Problem> problems) {
  for (Problem& problem : problems)
    problem.datatype = problem.datatype == moecclFloat64 ? moecclFloat32 : problem.datatype;
  for (Problem& problem : problems)
    if (problem.activation == moecclMoeSwiglu) problem.activation = moecclMoeGelu;
  return problems;
}

auto fifths(const std::vector<Problem>& problems, bool rest) {
  return testing::ValuesIn(offeredOnGpus(every(5, problems, rest)));
}

class LayersOnGpus : public testing::TestWithParam<Problem> {};

TEST_P(LayersOnGpus, LearnTheReferenceUnderEverySchedule) {
  const Task task = taskOf(GetParam());
  for (moecclSchedule_t schedule : schedulesOf(GetParam())) {
    const unsigned seed = 5 * GetParam().seed + schedule;
    trainOnGpus(task, {.seed = seed, .oneQueue = seed % 5 == 0},
                {.schedule = schedule, .inPlace = seed % 3 == 0, .onDefaultStream = seed % 7 == 0});
  }
}

const auto nameOfLayer = [](const auto& info) { return nameOfCase(info.param); };
INSTANTIATE_TEST_SUITE_P(Table, LayersOnGpus, fifths(layers(), false), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Wide, LayersOnGpus, fifths(layers(), true), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Hard, LayersOnGpus, testing::ValuesIn(offeredOnGpus(hardProblems())),
                         nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Narrow, LayersOnGpus, testing::ValuesIn(offeredOnGpus(narrowProblems())),
                         nameOfLayer);

// Rows go by token routing.
INSTANTIATE_TEST_SUITE_P(Routed, LayersOnGpus,
                         testing::ValuesIn(offeredOnGpus(every(3, routedProblems(), false))),
                         nameOfLayer);

class ChunkedOnGpus : public testing::TestWithParam<Problem> {};

TEST_P(ChunkedOnGpus, LearnsTheReference) {
  const unsigned seed = GetParam().seed;
  const Task task = taskOf(GetParam());
  for (const moecclSchedule_t schedule : chunkedSchedulesOf(GetParam()))
    trainOnGpus(task, {.seed = seed}, {.schedule = schedule, .inPlace = seed % 3 == 0});
}

INSTANTIATE_TEST_SUITE_P(Table, ChunkedOnGpus, fifths(chunkedProblems(), false), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Wide, ChunkedOnGpus, fifths(chunkedProblems(), true), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Dropless, ChunkedOnGpus,
                         testing::ValuesIn(offeredOnGpus(chunkedDroplessProblems())), nameOfLayer);

// Without training other workspaces do, and nothing is kept.
TEST(LayerOnGpus, InfersTheReference) {
  std::vector<Problem> problems;
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    problems.push_back(six("gate"));
    problems.back().gate = static_cast<moecclMoeGate_t>(gate);
    problems.back().choices = gate == moecclGateSwitch ? 1 : 2;
    problems.back().capacityFactor = 0.6;
  }
  problems.push_back(six("chunks"));
  problems.back().capacityGroups = 4;
  problems.back().chunks = 2;
  problems.push_back(six("dropless"));
  problems.back().dropless = true;
  problems.push_back(six("residual branch"));
  problems.back().residual = 5;
  unsigned seed = 0;
  for (const Problem& problem : problems) {
    const Solved solved = solve(problem);
    for (moecclSchedule_t schedule : schedulesOf(problem))
      onGpus(problem, {.seed = ++seed}, [&](Device& device, moecclGrid_t grid, int rank) {
        const DeviceElements tokens(
            device, encode(problem.datatype, solved.inputs[rank / problem.grid.nMp]));
        const DeviceStream stream(device);
        const DeviceLayer layer(device, grid, solved.layer, schedule);
        check(moecclMoeForward(layer.get(), tokens.get(), tokens.get(), stream.get()));
        Outcome outcome = statsOf(problem, layer.get());
        device.synchronize(stream.get());
        outcome.output = decode(problem.datatype, tokens.read());
        checkSolved(problem, solved, rank, outcome);
      });
  }
}

TEST(LayerOnGpus, ThroughEveryAlgorithm) {
  Problem problem = six("algorithms");
  problem.capacityGroups = 4;
  problem.chunks = 2;
  problem.residual = 5;
  const Task task = taskOf(problem);
  for (const char* algorithms :
       {"dispatch=flat;combine=flat;combineallgather=pipelined;splitdispatch=flat",
        "dispatch=hierarchical;combine=bruck;combineallgather=hierarchical;splitdispatch=bruck",
        "dispatch=dedup;combine=dedup;combineallgather=sequential;splitdispatch=dedup",
        "alltoall=hierarchical;allreduce=ring;allgather=ring;reducescatter=ring"})
    for (moecclSchedule_t schedule : schedulesOf(problem))
      trainOnGpus(task, {.algorithms = algorithms}, {.schedule = schedule});
}

// What a pass computes is on its stream alone. Exchanges that have something to go beside are on
// others.
TEST(LayerOnGpus, ExchangeBesideWhatTheyCompute) {
  const auto besideOf = [](std::int64_t chunks, std::int64_t residual) {
    Problem problem = six("beside");
    problem.capacityGroups = 4;
    problem.chunks = chunks;
    problem.residual = residual;
    std::vector<GpuCall> calls;
    trainOnGpus(taskOf(problem),
                {.algorithms = "dispatch=flat;combine=flat;allgather=linear", .calls = &calls},
                {.schedule = moecclScheduleS1});
    return std::ranges::count_if(
        calls, [](const GpuCall& call) { return call.kind == GpuCall::Kind::send && call.urgent; });
  };
  // Each rank has five others to send to in dispatch and combine, and one in the MP-AllGather; the
  // layer passes forward and backward twice.
  EXPECT_EQ(besideOf(1, 0), 0);
  EXPECT_EQ(besideOf(2, 0), 6 * 4 * 2 * (5 + 5 + 1));
  // Beside the residual branch only the dispatch, and in the backward passes the sum of its
  // gradients.
  EXPECT_GE(besideOf(1, 5), 6 * 4 * 5);
}

TEST(LayerOnGpus, BalancesTheBiasThatTheGateReads) {
  Problem problem = six("bias");
  problem.gate = moecclGateSigmoid;
  problem.hotGate = 1;
  const Solved solved = solve(problem);
  std::vector<double> assigned(static_cast<std::size_t>(problem.experts));
  for (const moe_reference::Result& batch : solved.expected)
    for (std::size_t e = 0; e < assigned.size(); ++e)
      assigned[e] += static_cast<double>(batch.assigned[e]);
  std::vector<double> balanced = solved.layer.bias;
  gates::updateBias(assigned.data(), static_cast<std::int32_t>(problem.experts), 0.5,
                    balanced.data());
  EXPECT_NE(balanced, solved.layer.bias);
  onGpus(problem, {}, [&](Device& device, moecclGrid_t grid, int rank) {
    const DeviceElements tokens(device,
                                encode(problem.datatype, solved.inputs[rank / problem.grid.nMp]));
    const DeviceElements output(device, tokens.read());
    const DeviceStream stream(device);
    DeviceLayer layer(device, grid, solved.layer, moecclScheduleS2);
    const auto updated = [&] {
      for (int i = 0; i < 2; ++i)
        check(moecclMoeForward(layer.get(), tokens.get(), output.get(), stream.get()));
      check(moecclMoeUpdateBias(layer.get(), static_cast<double*>(layer.bias().get()), 0.5));
      return decode(moecclFloat64, layer.bias().read());
    };
    checkThat(updated() == balanced, "another bias");
    // Only what came since counts.
    layer.bias().set(solved.layer.bias.data());
    checkThat(updated() == balanced, "another bias the second time");
  });
}

TEST(LayerOnGpus, ChooseASchedule) {
  const Problem problem = six("automatic");
  const Task task = taskOf(problem);
  trainOnGpus(task, {}, {.schedule = moecclScheduleAuto});
}

TEST(LayerOnGpus, SayWhatTheyDoNotOffer) {
  Problem problem;
  problem.grid = {2, 2, 1, moecclOrderEspEp};
  const Solved solved = solve(problem);
  onGpus(problem, {}, [&](Device& device, moecclGrid_t grid, int rank) {
    moecclMoeConfig_t config = solved.layer.config;
    config.datatype = moecclFloat64;
    moecclMoeLayer_t refused = nullptr;
    checkError(moecclMoeLayerCreate(grid, &config, &refused), moecclInvalidArgument, nullptr,
               {"config.datatype is 8", "on GPUs", "moecclFloat32 (7)", "moecclBfloat16 (9)"});
    config = solved.layer.config;
    config.learn = 1;
    checkError(moecclMoeLayerCreate(grid, &config, &refused), moecclInvalidArgument, nullptr,
               {"config.learn is 1", "on GPUs", "must be 0"});
    config.learn = 0;
    config.hidden *= rank + 1;
    checkError(moecclMoeLayerCreate(grid, &config, &refused), moecclInvalidUsage, nullptr,
               {"different configs", "hidden"});
    const DeviceElements tokens(device, encode(problem.datatype, solved.inputs[0]));
    const DeviceStream stream(device);
    const DeviceLayer layer(device, grid, solved.layer, moecclScheduleS2);
    const auto forwardInCapture = [&] {
      device.beginCapture(stream.get());
      checkError(moecclMoeForward(layer.get(), tokens.get(), tokens.get(), stream.get()),
                 moecclInvalidUsage, nullptr, {"being captured", "cannot be part of a graph"});
      device.endCapture(stream.get());
    };
    forwardInCapture();
    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    checkError(moecclMoeGetStats(layer.get(), &stats), moecclInvalidUsage, nullptr,
               {"no moecclMoeForward has completed"});
    check(moecclMoeForward(layer.get(), tokens.get(), tokens.get(), stream.get()));
    // What is refused leaves the last Forward what it was.
    forwardInCapture();
    check(moecclMoeGetStats(layer.get(), &stats));
    device.synchronize(stream.get());
  });
}

// Whatever device is current behind the caller's back, the layer's is where it works, and stays
// what it was.
TEST(LayerOnGpus, WorkWhileAnotherDeviceIsCurrent) {
  Problem problem;
  problem.gate = moecclGateSigmoid;
  const Task task = taskOf(problem);
  onGpus(problem, {}, [&](Device& device, moecclGrid_t grid, int rank) {
    const DeviceElements tokens(device, encode(problem.datatype, task.solved.inputs[0]));
    const DeviceElements slopes(device, encode(problem.datatype, task.outputGradients[0]));
    const int own = myGpu().device();
    {
      moe_reference::Layer whole = task.solved.layer;
      whole.config.training = 1;
      DeviceLayer layer(device, grid, whole, moecclScheduleS1);
      myGpu().setDevice(own + 100);
      check(moecclMoeForward(layer.get(), tokens.get(), tokens.get(), nullptr));
      check(moecclMoeBackward(layer.get(), slopes.get(), 1, slopes.get(), nullptr));
      Outcome outcome = statsOf(problem, layer.get());
      check(moecclMoeUpdateBias(layer.get(), static_cast<double*>(layer.bias().get()), 0.5));
      checkThat(myGpu().device() == own + 100, "another device is current behind the call");
      myGpu().setDevice(own);
      outcome.output = decode(problem.datatype, tokens.read());
      checkSolved(problem, task.solved, rank, outcome);
    }
  });
}

TEST(LayerOnGpus, TellWhereALaunchFailed) {
  Problem problem;
  problem.grid = {2, 2, 1, moecclOrderEspEp};
  const Task task = taskOf(problem);
  onGpus(task.problem, {}, [&](Device& device, moecclGrid_t grid, int) {
    const DeviceElements tokens(device, encode(problem.datatype, task.solved.inputs[0]));
    moe_reference::Layer whole = task.solved.layer;
    whole.config.training = 1;
    const DeviceLayer layer(device, grid, whole, moecclScheduleS2);
    const auto forward = [&] {
      return moecclMoeForward(layer.get(), tokens.get(), tokens.get(), nullptr);
    };
    const auto expectError = [&](moecclResult_t result, const char* text) {
      checkError(result, moecclUnhandledCudaError, nullptr, {text});
    };
    myGpu().breakKernels("choosing experts");
    expectError(forward(), "moecclMoeForward: choosing experts: ");
    myGpu().breakKernels("combining tokens");
    expectError(forward(), "moecclMoeForward: after SAA: combining tokens: ");
    myGpu().breakKernels("");
    check(forward());
    myGpu().breakKernels("experts backward");
    expectError(moecclMoeBackward(layer.get(), tokens.get(), 1, tokens.get(), nullptr),
                "moecclMoeBackward: after dispatch: experts backward: ");
    device.synchronize(nullptr);
  });
}

// Memory that CUDA does not have is no end: the call says what it wanted it for, and the next that
// finds some goes on.
TEST(LayerOnGpus, TellWhatMemoryIsMissing) {
  Problem problem;
  problem.grid = {2, 2, 1, moecclOrderEspEp};
  problem.dropless = true;
  problem.tokens = 48;
  const Task task = taskOf(problem);
  constexpr std::size_t kLarge = 1 << 20, kRows = 1024, kAny = -1;
  onGpus(task.problem, {}, [&](Device& device, moecclGrid_t grid, int rank) {
    const auto input = encode(problem.datatype, task.solved.inputs[rank / problem.grid.nMp]);
    const DeviceElements tokens(device, input), output(device, input);
    moecclMoeLayer_t none = nullptr;
    const moecclMoeConfig_t config = task.solved.layer.config;
    myGpu().limitMemory(rank == 0 ? kLarge : kAny);
    checkError(moecclMoeLayerCreate(grid, &config, &none),
               rank == 0 ? moecclUnhandledCudaError : moecclRemoteError, nullptr,
               {"out of memory"});
    myGpu().limitMemory(kAny);
    const DeviceLayer layer(device, grid, task.solved.layer, moecclScheduleS1);
    const auto forward = [&] {
      return moecclMoeForward(layer.get(), tokens.get(), output.get(), nullptr);
    };
    myGpu().limitMemory(kRows);
    checkError(forward(), moecclUnhandledCudaError, nullptr,
               {"moecclMoeForward: after ", "there is no memory for ", " rows of 8 elements",
                "cudaMalloc: out of memory"});
    myGpu().limitMemory(kAny);
    check(forward());
    Outcome outcome = statsOf(problem, layer.get());
    device.synchronize(nullptr);
    outcome.output = decode(problem.datatype, output.read());
    checkSolved(problem, task.solved, rank, outcome);
  });
}

// A pass that fails leaves work on its stream and beside it. The next pass comes after all of that,
// and so does who waits for the stream.
TEST(LayerOnGpus, ComeAfterWhatAFailedPassHasLeft) {
  Problem problem = six("failed pass");
  problem.capacityGroups = 4;
  problem.chunks = 2;
  problem.residual = 5;
  const Task task = taskOf(problem);
  unsigned seed = 0;
  for (moecclSchedule_t schedule : schedulesOf(problem)) {
    SCOPED_TRACE(nameOf(schedule));
    onGpus(problem, {.seed = ++seed}, [&](Device& device, moecclGrid_t grid, int rank) {
      const auto encoded = encode(problem.datatype, task.solved.inputs[rank / problem.grid.nMp]);
      const DeviceElements tokens(device, encoded), output(device, encoded);
      const DeviceStream first(device), second(device);
      moe_reference::Layer whole = task.solved.layer;
      whole.config.training = 1;
      const DeviceLayer layer(device, grid, whole, schedule);
      for (const char* kernel : {"experts", "combining tokens"}) {
        myGpu().breakKernels(kernel);
        const moecclResult_t result =
            moecclMoeForward(layer.get(), tokens.get(), output.get(), first.get());
        // PPMoE does not combine.
        if (schedule != moecclSchedulePpMoe || kernel == std::string("experts"))
          checkError(result, moecclUnhandledCudaError, nullptr, {kernel});
        myGpu().breakKernels("");
        check(moecclMoeForward(layer.get(), tokens.get(), output.get(), second.get()));
        Outcome outcome = statsOf(problem, layer.get());
        device.synchronize(second.get());
        outcome.output = decode(problem.datatype, output.read());
        checkSolved(problem, task.solved, rank, outcome);
      }
    });
  }
}

}  // namespace
}  // namespace moeccl::test

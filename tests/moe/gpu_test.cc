// The layer on GPU communicators, with doubles for CUDA and NCCL: ranks are threads, each with a device of its own,
// on whose memory and streams everything lies. The doubles run what is queued late and in random order, and find
// fault with what nothing orders; results are held against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>

#include "kernels/gates/gate.h"
#include "tests/exec/gpu_ranks.h"
#include "tests/moe/task.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

// Elements on the device of the rank that is this thread.
class OnDeviceElements {
 public:
  OnDeviceElements(const void* host, std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    memory_ = myGpu().allocate(bytes);
    set(host);
  }
  explicit OnDeviceElements(const Elements& host) : OnDeviceElements(host.data(), host.size()) {}
  OnDeviceElements(const OnDeviceElements&) = delete;
  OnDeviceElements& operator=(const OnDeviceElements&) = delete;
  ~OnDeviceElements() { myGpu().free(memory_); }

  void* get() const { return memory_; }
  void set(const void* host) {
    if (bytes_ == 0) return;
    myGpu().toDevice(memory_, host, bytes_, nullptr);
    myGpu().synchronize(nullptr);
  }
  // Waits for nothing but its own copy.
  Elements read() const {
    Elements host(bytes_);
    if (bytes_ == 0) return host;
    myGpu().toHost(host.data(), memory_, bytes_, nullptr);
    myGpu().synchronize(nullptr);
    return host;
  }

 private:
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

struct OnDeviceWeights {
  explicit OnDeviceWeights(const moe_reference::Shard& shard, const std::vector<double>& hostBias)
      : gate(shard.gate),
        noise(shard.noise),
        w1(shard.w1),
        b1(shard.b1),
        w2(shard.w2),
        b2(shard.b2),
        residualW1(shard.residualW1),
        residualB1(shard.residualB1),
        residualW2(shard.residualW2),
        residualB2(shard.residualB2),
        bias(hostBias.data(), hostBias.size() * sizeof(double)) {}

  void set(moecclMoeLayer_t layer) const {
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = gate.get();
    weights.noise = noise.get();
    weights.bias = static_cast<const double*>(bias.get());
    weights.w1 = w1.get();
    weights.b1 = b1.get();
    weights.w2 = w2.get();
    weights.b2 = b2.get();
    weights.residualW1 = residualW1.get();
    weights.residualB1 = residualB1.get();
    weights.residualW2 = residualW2.get();
    weights.residualB2 = residualB2.get();
    check(moecclMoeLayerSetWeights(layer, &weights));
  }

  OnDeviceElements gate, noise, w1, b1, w2, b2;
  OnDeviceElements residualW1, residualB1, residualW2, residualB2, bias;
};

struct OnDeviceGradients {
  explicit OnDeviceGradients(const Learned& room)
      : gate(room.gate),
        noise(room.noise),
        w1(room.w1),
        b1(room.b1),
        w2(room.w2),
        b2(room.b2),
        residualW1(room.residualW1),
        residualB1(room.residualB1),
        residualW2(room.residualW2),
        residualB2(room.residualB2) {}

  void set(moecclMoeLayer_t layer) const {
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.gate = gate.get();
    gradients.noise = noise.get();
    gradients.w1 = w1.get();
    gradients.b1 = b1.get();
    gradients.w2 = w2.get();
    gradients.b2 = b2.get();
    gradients.residualW1 = residualW1.get();
    gradients.residualB1 = residualB1.get();
    gradients.residualW2 = residualW2.get();
    gradients.residualB2 = residualB2.get();
    check(moecclMoeLayerSetGradients(layer, &gradients));
  }
  Learned read(const Elements& input) const {
    return {input,
            gate.read(),
            noise.read(),
            w1.read(),
            b1.read(),
            w2.read(),
            b2.read(),
            residualW1.read(),
            residualB1.read(),
            residualW2.read(),
            residualB2.read()};
  }

  OnDeviceElements gate, noise, w1, b1, w2, b2;
  OnDeviceElements residualW1, residualB1, residualW2, residualB2;
};

struct Turn {
  moecclSchedule_t schedule;
  unsigned seed = 1;
  bool oneQueue = false;
  bool inPlace = false;
  bool onDefaultStream = false;
  std::string algorithms = "";
};

// Ranks on GPUs that are all there is in the world; what the doubles found fault with fails the test.
void onGpus(const Problem& problem, const Turn& turn, const RankFunction& function) {
  SCOPED_TRACE(problem.text() + ", " + nameOf(turn.schedule));
  GpuWorld world(
      {.seed = turn.seed, .oneQueue = turn.oneQueue, .threads = true, .ownMemory = true});
  {
    const GpusOfRanks ranks(world);
    Job job = jobOf(problem);
    job.memory = moecclMemoryCuda;
    job.algorithms = turn.algorithms;
    runJob(job, function);
  }
  world.run();
  EXPECT_EQ(world.problems(), "");
  EXPECT_EQ(world.stuck(), "");
  EXPECT_EQ(world.leftovers(), "");
}

// A layer of the problem on the caller's device, with its weights.
struct OnDeviceLayer {
  OnDeviceLayer(moecclComm_t comm, const Problem& problem, const moe_reference::Layer& whole,
                moecclSchedule_t schedule) {
    check(moecclGridCreate(comm, problem.grid, &grid), comm);
    moecclMoeConfig_t config = whole.config;
    config.schedule = schedule;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclMoeLayerGetShapes(layer, &shapes));
    weights.emplace(moe_reference::shardOf(whole, shapes), whole.bias);
    weights->set(layer);
  }
  void destroy() {
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  }

  moecclGrid_t grid = nullptr;
  moecclMoeLayer_t layer = nullptr;
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  std::optional<OnDeviceWeights> weights;
};

Outcome outcomeOf(const Problem& problem, moecclMoeLayer_t layer, const Elements& output) {
  Outcome outcome;
  outcome.output = decode(problem.datatype, output);
  moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  check(moecclMoeGetStats(layer, &stats));
  outcome.auxiliaryLoss = stats.auxiliaryLoss;
  outcome.imbalance = stats.imbalance;
  outcome.droppedChoices = stats.droppedChoices;
  outcome.assigned.assign(stats.assigned, stats.assigned + problem.experts);
  outcome.kept.assign(stats.kept, stats.kept + problem.experts);
  return outcome;
}

// Two passes forward and backward, on streams that nobody but the layer orders against each other, without a wait
// of the caller's before the end.
void train(const Task& task, const Turn& turn) {
  const Problem& problem = task.problem;
  onGpus(problem, turn, [&](moecclComm_t comm, int rank) {
    moe_reference::Layer whole = task.solved.layer;
    whole.config.training = 1;
    OnDeviceLayer own(comm, problem, whole, turn.schedule);
    const int batch = rank / problem.grid.nMp;
    Gradients expected = moe_reference::shardOf(whole, own.shapes, task.expected[batch]);
    {
      const OnDeviceGradients gradients(roomFor(problem.datatype, expected, 0));
      gradients.set(own.layer);
      const Elements tokens = encode(problem.datatype, task.solved.inputs[batch]);
      const Elements slopes = encode(problem.datatype, task.outputGradients[batch]);
      const Elements poison =
          encode(problem.datatype, std::vector<double>(task.solved.inputs[batch].size(),
                                                       std::numeric_limits<double>::quiet_NaN()));
      const OnDeviceElements input[] = {OnDeviceElements(tokens), OnDeviceElements(tokens)};
      const OnDeviceElements slope[] = {OnDeviceElements(slopes), OnDeviceElements(slopes)};
      const OnDeviceElements output(poison), result(poison);
      const Gpu::Stream forwards = turn.onDefaultStream ? nullptr : myGpu().newStream(false);
      const Gpu::Stream backwards = turn.onDefaultStream ? nullptr : myGpu().newStream(false);
      for (int pass = 0; pass < 2; ++pass) {
        check(moecclMoeLayerSetStep(own.layer, problem.step));
        check(moecclMoeForward(own.layer, input[pass].get(),
                               turn.inPlace ? input[pass].get() : output.get(), forwards));
        check(moecclMoeBackward(own.layer, slope[pass].get(), kAuxiliaryLossScale,
                                turn.inPlace ? slope[pass].get() : result.get(), backwards));
      }
      myGpu().synchronize(backwards);  // what it has waited for has ended too
      for (auto Gradients::*each :
           {&Gradients::gate, &Gradients::noise, &Gradients::w1, &Gradients::b1, &Gradients::w2,
            &Gradients::b2, &Gradients::residualW1, &Gradients::residualB1, &Gradients::residualW2,
            &Gradients::residualB2})
        for (double& number : expected.*each) number *= 2;
      expectLearned(problem.datatype, gradients.read((turn.inPlace ? slope[1] : result).read()),
                    expected, toleranceOf(problem.datatype));
      expectSolved(problem, task.solved, rank,
                   outcomeOf(problem, own.layer, (turn.inPlace ? input[1] : output).read()));
    }
    own.weights.reset();
    own.destroy();
  });
}

void trainAll(const std::vector<Problem>& problems, std::size_t each) {
  unsigned seed = 0;
  for (std::size_t i = 0; i < problems.size(); i += each) {
    const Task task = taskOf(problems[i]);
    for (moecclSchedule_t schedule : schedulesOf(problems[i])) {
      ++seed;
      train(task, {.schedule = schedule,
                   .seed = seed,
                   .oneQueue = seed % 5 == 0,
                   .inPlace = seed % 3 == 0,
                   .onDefaultStream = seed % 7 == 0});
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(LayerOnGpus, LearnsTheReferenceOnGrids) { trainAll(gridProblems(), 6); }
TEST(LayerOnGpus, LearnsTheReferenceInHardCases) { trainAll(hardProblems(), 1); }
TEST(LayerOnGpus, LearnsTheReferenceThroughGates) { trainAll(gateProblems(), 2); }
TEST(LayerOnGpus, LearnsTheReferenceWithAResidualBranch) { trainAll(residualProblems(), 4); }
TEST(LayerOnGpus, LearnsTheReferenceDropless) { trainAll(droplessProblems(), 6); }

TEST(LayerOnGpus, LearnsTheReferenceInChunks) {
  std::vector<Problem> problems = chunkedProblems();
  std::ranges::copy(chunkedGateProblems(), std::back_inserter(problems));
  unsigned seed = 0;
  for (const Problem& problem : problems)
    if (++seed % 2 == 0)
      train(taskOf(problem),
            {.schedule = moecclScheduleS1, .seed = seed, .inPlace = seed % 3 == 0});
}

// Without training other workspaces do, and nothing is kept.
TEST(LayerOnGpus, InfersTheReference) {
  std::vector<Problem> problems = gateProblems();
  problems.push_back(six("chunks"));
  problems.back().capacityGroups = 4;
  problems.back().chunks = 2;
  problems.push_back(six("dropless"));
  problems.back().dropless = true;
  problems.push_back(six("residual branch"));
  problems.back().residual = 5;
  unsigned seed = 0;
  for (std::size_t i = 0; i < problems.size(); i += i + 3 < problems.size() ? 4 : 1) {
    Problem problem = problems[i];
    problem.training = false;
    const Solved solved = solve(problem);
    for (moecclSchedule_t schedule : schedulesOf(problem))
      onGpus(problem, {.schedule = schedule, .seed = ++seed}, [&](moecclComm_t comm, int rank) {
        OnDeviceLayer own(comm, problem, solved.layer, schedule);
        const Gpu::Stream stream = myGpu().newStream(false);
        {
          const OnDeviceElements tokens(
              encode(problem.datatype, solved.inputs[rank / problem.grid.nMp]));
          check(moecclMoeForward(own.layer, tokens.get(), tokens.get(), stream));
          myGpu().synchronize(stream);
          expectSolved(problem, solved, rank, outcomeOf(problem, own.layer, tokens.read()));
        }
        own.weights.reset();
        own.destroy();
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
        "dispatch=dedup;combine=dedup;combineallgather=sequential;splitdispatch=dedup",
        "alltoall=hierarchical;allreduce=ring;allgather=ring;reducescatter=ring"})
    for (moecclSchedule_t schedule : schedulesOf(problem))
      train(task, {.schedule = schedule, .algorithms = algorithms});
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
  onGpus(problem, {.schedule = moecclScheduleS2}, [&](moecclComm_t comm, int rank) {
    OnDeviceLayer own(comm, problem, solved.layer, moecclScheduleS2);
    const Gpu::Stream stream = myGpu().newStream(false);
    {
      const OnDeviceElements tokens(
          encode(problem.datatype, solved.inputs[rank / problem.grid.nMp]));
      const OnDeviceElements output(tokens.read());
      const auto updated = [&] {
        for (int i = 0; i < 2; ++i)
          check(moecclMoeForward(own.layer, tokens.get(), output.get(), stream));
        check(moecclMoeUpdateBias(own.layer, static_cast<double*>(own.weights->bias.get()), 0.5));
        return decode(moecclFloat64, own.weights->bias.read());
      };
      checkThat(updated() == balanced, "another bias");
      // Only what came since counts.
      own.weights->bias.set(solved.layer.bias.data());
      checkThat(updated() == balanced, "another bias the second time");
    }
    own.weights.reset();
    own.destroy();
  });
}

TEST(LayerOnGpus, ChooseASchedule) {
  const Problem problem = six("automatic");
  const Task task = taskOf(problem);
  train(task, {.schedule = moecclScheduleAuto});
}

TEST(LayerOnGpus, SayWhatTheyDoNotOffer) {
  Problem problem;
  problem.grid = {2, 2, 1, moecclOrderEspEp};
  const Solved solved = solve(problem);
  onGpus(problem, {.schedule = moecclScheduleS2}, [&](moecclComm_t comm, int rank) {
    OnDeviceLayer own(comm, problem, solved.layer, moecclScheduleS2);
    moecclMoeConfig_t config = solved.layer.config;
    config.datatype = moecclFloat64;
    moecclMoeLayer_t refused = nullptr;
    checkError(moecclMoeLayerCreate(own.grid, &config, &refused), moecclInvalidArgument, nullptr,
               {"config.datatype is 8", "on GPUs", "moecclFloat32 (7)"});
    config = solved.layer.config;
    config.hidden *= rank + 1;
    checkError(moecclMoeLayerCreate(own.grid, &config, &refused), moecclInvalidUsage, nullptr,
               {"different configs", "hidden"});
    {
      const OnDeviceElements tokens(encode(problem.datatype, solved.inputs[0]));
      const Gpu::Stream stream = myGpu().newStream(false);
      myGpu().beginCapture(stream);
      checkError(moecclMoeForward(own.layer, tokens.get(), tokens.get(), stream),
                 moecclInvalidUsage, nullptr, {"being captured", "cannot be part of a graph"});
      myGpu().endCapture(stream);
      moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
      checkError(moecclMoeGetStats(own.layer, &stats), moecclInvalidUsage, nullptr,
                 {"no moecclMoeForward has completed"});
    }
    own.weights.reset();
    own.destroy();
  });
}

// Whatever device is current behind the caller's back, the layer's is where it works, and stays what it was.
TEST(LayerOnGpus, WorkWhileAnotherDeviceIsCurrent) {
  Problem problem;
  const Solved solved = solve(problem);
  onGpus(problem, {.schedule = moecclScheduleS2}, [&](moecclComm_t comm, int rank) {
    OnDeviceLayer own(comm, problem, solved.layer, moecclScheduleS2);
    {
      const OnDeviceElements tokens(encode(problem.datatype, solved.inputs[0]));
      const int device = myGpu().device();
      myGpu().setDevice(device + 100);
      check(moecclMoeForward(own.layer, tokens.get(), tokens.get(), nullptr));
      moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
      check(moecclMoeGetStats(own.layer, &stats));
      checkThat(myGpu().device() == device + 100, "another device is current behind the call");
      myGpu().setDevice(device);
      expectSolved(problem, solved, rank, outcomeOf(problem, own.layer, tokens.read()));
    }
    own.weights.reset();
    own.destroy();
  });
}

TEST(LayerOnGpus, TellWhereALaunchFailed) {
  Problem problem;
  problem.grid = {2, 2, 1, moecclOrderEspEp};
  const Task task = taskOf(problem);
  onGpus(problem, {.schedule = moecclScheduleS2}, [&](moecclComm_t comm, int) {
    OnDeviceLayer own(comm, task.problem, task.solved.layer, moecclScheduleS2);
    {
      const OnDeviceElements tokens(encode(problem.datatype, task.solved.inputs[0]));
      const auto forward = [&] {
        return moecclMoeForward(own.layer, tokens.get(), tokens.get(), nullptr);
      };
      const auto expectError = [&](moecclResult_t result, std::vector<std::string> parts) {
        checkError(result, moecclUnhandledCudaError, nullptr, parts);
      };
      myGpu().breakKernels("choosing experts");
      expectError(forward(), {"moecclMoeForward: choosing experts: "});
      myGpu().breakKernels("combining tokens");
      expectError(forward(),
                  {"moecclMoeForward: after combine and MP-AllGather: combining tokens: "});
      myGpu().breakKernels("");
      check(forward());
      myGpu().breakKernels("experts backward");
      expectError(moecclMoeBackward(own.layer, tokens.get(), 1, tokens.get(), nullptr),
                  {"moecclMoeBackward: after MP-Split and dispatch: experts backward: "});
      myGpu().synchronize(nullptr);
    }
    own.weights.reset();
    own.destroy();
  });
}

}  // namespace
}  // namespace moeccl::test

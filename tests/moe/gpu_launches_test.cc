// How many kernels and exchanges the host gives GPUs, counted on doubles of them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "moeccl/route.h"
#include "tests/gpu/launch_counts.h"
#include "tests/moe/on_gpus.h"

namespace moeccl::test {
namespace {

using moe_reference::encode;

// Links that a communicator measures would count as a layer's work, whoever starts this program.
const int kNoProbe = setenv("MOECCL_PROBE", "0", 1);

// Launches, and waits of the host for numbers, of the device that has most. Waits between which it
// queues nothing but copies of further numbers are one.
struct Asked {
  std::int64_t launches = 0, waits = 0;
};

// Launches that a call makes.
int launchesBy(const GpuCall& call) {
  using Kind = GpuCall::Kind;
  switch (call.kind) {
    case Kind::copy:
    case Kind::groupEnd:
    case Kind::reduction:
    case Kind::division:
    case Kind::native:
      return 1;
    case Kind::kernel:
      break;
    default:
      return 0;
  }
  if (const int known = launchesOf(call.name); known > 0) return known;
  const bool one =
      std::ranges::any_of(std::array{"a copy of ", "step ", "clearing "},
                          [&](const char* text) { return call.name.starts_with(text); });
  EXPECT_TRUE(one) << call.name << " is not in tests/gpu/launch_counts.h";
  return 1;
}

Asked mostAsked(const std::vector<GpuCall>& calls, int devices) {
  using Kind = GpuCall::Kind;
  std::vector<Asked> of(static_cast<std::size_t>(devices));
  std::vector<bool> idle(of.size());
  for (const GpuCall& call : calls) {
    Asked& device = of[static_cast<std::size_t>(call.device)];
    auto isIdle = idle[static_cast<std::size_t>(call.device)];
    device.launches += launchesBy(call);
    device.waits += call.kind == Kind::hostWait && !isIdle;
    const bool isOfStreams =
        call.kind == Kind::record || call.kind == Kind::wait || call.kind == Kind::sends;
    isIdle = call.kind == Kind::hostWait ||
             (isIdle && (call.name.ends_with(" to the host") || isOfStreams));
  }
  Asked most;
  for (const Asked& device : of) {
    most.launches = std::max(most.launches, device.launches);
    most.waits = std::max(most.waits, device.waits);
  }
  return most;
}

// What a call asks for, by the first and two more of it.
template <typename Calls>
Asked perCall(const Calls& askedIn) {
  const Asked once = askedIn(1), thrice = askedIn(3);
  return {(thrice.launches - once.launches) / 2, (thrice.waits - once.waits) / 2};
}

// Room for the gradients of all weights; a rank takes a part of it.
class GradientsOfAll {
 public:
  GradientsOfAll(Device& device, const Problem& problem)
      : gate_(device, zeros(problem, problem.embedding)),
        w1_(device, zeros(problem, problem.embedding * problem.hidden)),
        b1_(device, zeros(problem, problem.hidden)),
        w2_(device, zeros(problem, problem.embedding * problem.hidden)),
        b2_(device, zeros(problem, problem.embedding)) {}

  void setFor(moecclMoeLayer_t layer) const {
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.gate = gate_.get();
    gradients.w1 = w1_.get(), gradients.b1 = b1_.get();
    gradients.w2 = w2_.get(), gradients.b2 = b2_.get();
    check(moecclMoeLayerSetGradients(layer, &gradients));
  }

 private:
  static moe_reference::Elements zeros(const Problem& problem, std::int64_t perExpert) {
    return encode(problem.datatype,
                  std::vector<double>(static_cast<std::size_t>(problem.experts * perExpert)));
  }
  DeviceElements gate_, w1_, b1_, w2_, b2_;
};

enum class Passes { forward, forwardAndBackward };

// In so many passes of a new layer.
Asked askedOf(const Problem& problem, const Solved& solved, moecclSchedule_t schedule, int count,
              Passes passes = Passes::forward) {
  const bool learns = passes == Passes::forwardAndBackward;
  std::vector<GpuCall> calls;
  onGpus(problem, {.calls = &calls}, [&](Device& device, moecclGrid_t grid, int rank) {
    const DeviceElements tokens(device,
                                encode(problem.datatype, solved.inputs[rank / problem.grid.nMp]));
    const DeviceElements output(device, tokens.read());
    const DeviceStream stream(device);
    moe_reference::Layer whole = solved.layer;
    whole.config.training = learns ? 1 : 0;
    const DeviceLayer layer(device, grid, whole, schedule);
    const GradientsOfAll gradients(device, problem);
    if (learns) gradients.setFor(layer.get());
    for (int pass = 0; pass < count; ++pass) {
      check(moecclMoeForward(layer.get(), tokens.get(), output.get(), stream.get()));
      if (learns)
        check(moecclMoeBackward(layer.get(), tokens.get(), 0.01, output.get(), stream.get()));
    }
    device.synchronize(stream.get());
  });
  return mostAsked(calls, problem.ranks());
}

TEST(LayerOnGpus, WaitOnceForTheCountsOfAllChunks) {
  Problem problem = six("counts of chunks");
  problem.dropless = true;
  problem.chunks = 3;
  const Solved solved = solve(problem);
  for (moecclSchedule_t schedule : chunkedSchedulesOf(problem)) {
    const auto asked = [&](int passes) { return askedOf(problem, solved, schedule, passes); };
    EXPECT_EQ(perCall(asked).waits, 1) << nameOf(schedule);
  }
}

// On eight ranks with 32 experts each. Host time per launch is a few microseconds.
TEST(LayerOnGpus, WideAskLittleOfADroplessForward) {
  for (const moecclGridShape_t& grid : {moecclGridShape_t{1, 8, 1, moecclOrderEspEp},
                                        {8, 8, 1, moecclOrderEspEp},
                                        {2, 4, 2, moecclOrderEspEp},
                                        {2, 2, 4, moecclOrderEpEsp},
                                        {8, 4, 2, moecclOrderEpEsp},
                                        {1, 1, 8, moecclOrderEspEp},
                                        {2, 1, 8, moecclOrderEspEp}}) {
    Problem problem;
    problem.grid = grid;
    problem.tokens = 64;
    problem.embedding = 4;
    problem.hidden = 8;
    problem.experts = 256;
    problem.choices = 4;
    problem.dropless = true;
    const Solved solved = solve(problem);
    for (moecclSchedule_t schedule : schedulesOf(problem)) {
      SCOPED_TRACE(nameOf(schedule));
      const Asked asked =
          perCall([&](int passes) { return askedOf(problem, solved, schedule, passes); });
      std::printf("nMp %d, nEp %d, nEsp %d, %s: %lld launches\n", grid.nMp, grid.nEp, grid.nEsp,
                  nameOf(schedule), static_cast<long long>(asked.launches));
      EXPECT_LE(asked.launches, 60);
      EXPECT_GE(asked.launches, 25) << "not all are counted";
      EXPECT_EQ(asked.waits, 1);
    }
  }
}

// In so many steps of a route in latency mode: Begin, Dispatch and Combine.
Asked askedOfSteps(const Problem& problem, int steps) {
  constexpr std::int64_t kTokens = 4, kHidden = 8;
  std::vector<GpuCall> calls;
  onGpus(problem, {.calls = &calls}, [&](Device& device, moecclGrid_t grid, int rank) {
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = static_cast<int>(problem.experts);
    config.topK = 2;
    config.mode = "latency";
    config.hidden = kHidden;
    config.maxTokens = kTokens;
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid, &config, &route));
    moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
    check(moecclRouteGetInfo(route, &info));
    std::vector<std::int32_t> chosen;
    for (std::int64_t i = 0; i < 2 * kTokens; ++i)
      chosen.push_back(static_cast<std::int32_t>((rank + 3 * i) % problem.experts));
    const std::vector<float> ones(chosen.size(), 1);
    const std::vector<std::uint16_t> numbers(
        static_cast<std::size_t>(std::max(info.maxRows, kTokens) * kHidden), 0x3f80);
    const auto put = [&](const auto& values) {
      return DeviceElements(device, values.data(), values.size() * sizeof(values[0]));
    };
    const DeviceElements indices = put(chosen), weights = put(ones), tokens = put(numbers),
                         rows = put(numbers), output = put(numbers);
    const DeviceStream stream(device);
    for (int step = 0; step < steps; ++step) {
      moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
      routing.tokens = kTokens;
      routing.experts = static_cast<const std::int32_t*>(indices.get());
      routing.weights = static_cast<const float*>(weights.get());
      moecclRoutePass_t pass = nullptr;
      check(moecclRouteBegin(route, &routing, stream.get(), &pass));
      check(moecclPassDispatch(pass, tokens.get(), rows.get(), stream.get()));
      check(moecclPassCombine(pass, rows.get(), output.get(), stream.get()));
      check(moecclPassEnd(pass));
    }
    device.synchronize(stream.get());
    check(moecclRouteDestroy(route));
  });
  return mostAsked(calls, problem.ranks());
}

// kernel_report.py prints these lines.
TEST(LaunchesOnGpus, OfPassesAndOfADecodingStep) {
  struct Row {
    int ranks;
    std::int64_t s1, dropless, step;  // forward, at most
    std::int64_t s1Both, droplessBoth;
  };
  for (const Row& row : {Row{1, 26, 26, 10, 58, 59}, Row{8, 40, 35, 12, 86, 74}}) {
    Problem problem;
    problem.grid = {1, row.ranks, 1, moecclOrderEspEp};
    problem.tokens = 64;
    problem.embedding = 4;
    problem.hidden = 8;
    problem.experts = 64;
    problem.choices = 4;
    const auto expectAtMost = [&](std::int64_t most, const std::string& what, const Asked& asked) {
      std::printf("ranks: %d, experts: 64, %s: %lld launches\n", row.ranks, what.c_str(),
                  static_cast<long long>(asked.launches));
      EXPECT_LE(asked.launches, most) << what;
      EXPECT_GE(asked.launches, most / 2) << what << ": not all are counted";
    };
    for (const bool dropless : {false, true}) {
      problem.dropless = dropless;
      const Solved solved = solve(problem);
      const std::string how = dropless ? ", dropless" : " under S1";
      const auto expectPasses = [&](std::int64_t most, const std::string& what, Passes passes) {
        expectAtMost(most, what + how, perCall([&](int count) {
                       return askedOf(problem, solved, moecclScheduleS1, count, passes);
                     }));
      };
      expectPasses(dropless ? row.dropless : row.s1, "forward", Passes::forward);
      expectPasses(dropless ? row.droplessBoth : row.s1Both, "forward and backward",
                   Passes::forwardAndBackward);
    }
    expectAtMost(row.step, "decoding step of a route",
                 perCall([&](int steps) { return askedOfSteps(problem, steps); }));
  }
}

}  // namespace
}  // namespace moeccl::test

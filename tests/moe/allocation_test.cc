// Once a layer has run, running it again, forward and backward, allocates nothing: operator new of
// this program counts. Only the transport may, where a message comes earlier than any before and
// finds no spare buffer.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/moe/on_layer.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};
std::atomic<std::size_t> most{SIZE_MAX};  // bytes of one allocation
std::atomic<long> left{-1};               // allocations before one that fails; below 0: none does
thread_local std::size_t mostHere = SIZE_MAX;  // the same, of one rank

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  if (bytes > most || bytes > mostHere || (left >= 0 && left-- == 0)) throw std::bad_alloc();
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace moeccl::test {
namespace {

constexpr int kPasses = 400;

TEST(Allocation, NoneOnceTheLayerHasRun) {
  for (const auto& [schedule, gate] : {std::pair{moecclScheduleBaseline, moecclGateNoisyTopK},
                                       {moecclScheduleS1, moecclGateSwitch},
                                       {moecclScheduleS2, moecclGateExpertChoice},
                                       {moecclSchedulePpMoe, moecclGateSigmoid}}) {
    Problem problem;
    problem.name = "allocation";
    problem.grid = {schedule == moecclSchedulePpMoe ? 4 : 2, 2, 2, moecclOrderEspEp};
    problem.tokens = 41;
    problem.gate = gate;
    problem.choices = gate == moecclGateSwitch ? 1 : 2;
    problem.training = true;
    const Solved solved = solve(problem);
    allocations = 0;
    std::barrier meet(problem.ranks());
    onLayer(problem, solved, schedule, [&](const LayerRank& at) {
      const moecclMoeLayer_t layer = at.layer;
      moe_reference::Elements tokens = at.input, gradient = tokens;
      const auto pass = [&] {
        check(moecclMoeForward(layer, tokens.data(), tokens.data(), nullptr));
        check(moecclMoeBackward(layer, gradient.data(), 1.0, gradient.data(), nullptr));
      };
      for (int i = 0; i < 3; ++i) pass();
      meet.arrive_and_wait();
      counting = true;
      meet.arrive_and_wait();
      for (int i = 0; i < kPasses; ++i) pass();
      meet.arrive_and_wait();
      counting = false;
      meet.arrive_and_wait();
    });
    // One allocation per pass, by one of the ranks, would be kPasses.
    EXPECT_LT(allocations, kPasses / 4) << "schedule " << schedule;
  }
}

// A dropless layer's memory grows with what experts are given; where there is none, the text says
// how much it was.
TEST(Allocation, DroplessLayersKeepWhatTheyGet) {
  for (moecclSchedule_t schedule :
       {moecclScheduleBaseline, moecclScheduleS1, moecclSchedulePpMoe}) {
    Problem problem;
    problem.name = "memory";
    problem.tokens = 100;
    problem.dropless = true;
    problem.training = true;
    const Solved solved = solve(problem);
    onLayer(problem, solved, schedule, [&](const LayerRank& at) {
      const moecclMoeLayer_t layer = at.layer;
      const moe_reference::Elements& tokens = at.input;
      moe_reference::Elements output(tokens.size());
      const auto forward = [&] {
        return moecclMoeForward(layer, tokens.data(), output.data(), nullptr);
      };
      most = 200 * 8 * sizeof(float) - 1;  // less than all choices' rows
      const moecclResult_t without = forward();
      most = SIZE_MAX;
      checkError(without, moecclSystemError, nullptr,
                 {"moecclMoeForward: there is no memory for 200 rows of 8 elements", "dropless"});
      moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
      checkThat(moecclMoeGetStats(layer, &stats) == moecclInvalidUsage, "statistics of a failure");
      for (std::size_t limit : {SIZE_MAX, 200 * 8 * sizeof(float) - 1}) {
        most = limit;
        const moecclResult_t with = forward();
        most = SIZE_MAX;
        check(with);
        EXPECT_LE(moe_reference::largestError(moe_reference::decode(problem.datatype, output),
                                              solved.expected[0].output),
                  1e-5);
      }
    });
  }
}

// A layer that one rank has no memory for is made on none, and none waits for it.
TEST(Allocation, OneRankHasNoMemoryForALayer) {
  Problem problem;
  problem.name = "memory of one rank";
  problem.grid = {2, 2, 2, moecclOrderEspEp};
  problem.tokens = 1000;
  const Solved solved = solve(problem);
  runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    const moecclMoeConfig_t config = solved.layer.config;
    moecclMoeLayer_t layer = nullptr;
    mostHere = rank == 2 ? 8000 : SIZE_MAX;
    const moecclResult_t result = moecclMoeLayerCreate(grid, &config, &layer);
    mostHere = SIZE_MAX;
    if (rank == 2)
      checkError(result, moecclSystemError, nullptr, {"moecclMoeLayerCreate: out of memory"});
    else
      checkError(result, moecclRemoteError, nullptr, {"rank 2 failed: out of memory"});
    checkThat(layer == nullptr, "a layer in spite of the error");
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
}

// Whichever allocation fails, on the way of a call or of what tells its error: returns whether one
// did.
template <typename Call>
bool failsFor(long allocation, moecclResult_t result, Call call) {
  left = allocation;
  const moecclResult_t actual = call();
  const bool failed = left < 0;
  left = -1;
  checkThat(
      actual == result || (failed && actual == moecclSystemError),
      "result " + std::to_string(actual) + " without allocation " + std::to_string(allocation));
  return failed;
}

TEST(Allocation, FailingIsNoDefect) {
  long n = 0;
  while (failsFor(n, moecclInvalidArgument,
                  [] { return moecclMoeForward(nullptr, nullptr, nullptr, nullptr); }))
    ++n;
  EXPECT_GT(n, 0);
  Problem problem;
  problem.name = "no memory";
  problem.residual = 3;
  const Solved solved = solve(problem);
  bool failed = true;
  // Its communicator fails with it.
  for (n = 0; failed && !HasFailure(); ++n)
    runJob(jobOf(problem), [&](moecclComm_t comm, int) {
      moecclGrid_t grid = makeGrid(comm, problem.grid);
      moecclMoeConfig_t config = solved.layer.config;
      config.schedule = moecclScheduleS1;
      moecclMoeLayer_t layer = nullptr;
      moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      check(moecclMoeLayerGetShapes(layer, &shapes));
      const moe_reference::Shard shard = moe_reference::shardOf(solved.layer, shapes);
      check(moecclMoeLayerSetWeights(layer, &shard.weights));
      const moe_reference::Elements tokens =
          moe_reference::encode(problem.datatype, solved.inputs[0]);
      moe_reference::Elements output(tokens.size());
      failed = failsFor(n, moecclSuccess, [&] {
        return moecclMoeForward(layer, tokens.data(), output.data(), nullptr);
      });
      check(moecclMoeLayerDestroy(layer));
      moecclGridDestroy(grid);
      throw Aborts{};
    });
  EXPECT_GT(n, 0);
}

TEST(Allocation, TheCounterCounts) {
  counting = true;
  const long before = allocations;
  for (int i = 0; i < 2; ++i) {
    int* volatile seen = new int;  // else the compiler may do without
    delete seen;
  }
  counting = false;
  EXPECT_GE(allocations - before, 2);
}

}  // namespace
}  // namespace moeccl::test

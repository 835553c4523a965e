// A route in latency mode allocates nothing in its calls, at whatever sizes: operator new of
// this program counts in the threads that call. Only the transport may, where a message comes
// earlier than any before and finds no spare buffer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "moeccl/route.h"
#include "tests/api/ranks.h"
#include "tests/sanitized.h"

namespace {
thread_local bool counting = false;
std::atomic<long> allocations{0};

#ifndef MOECCL_SANITIZED
void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
#endif
}  // namespace

#ifndef MOECCL_SANITIZED
void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace moeccl::test {
namespace {

constexpr int kChoices = 4, kExperts = 11, kTokens = 16, kHidden = 96, kPasses = 400;

// Allocations of kPasses steps of each rank, all sizes among them, after some of `before` tokens.
long allocationsOf(const std::vector<int>& nodes, const char* algorithm, int before) {
  int ranks = 0;
  for (const int node : nodes) ranks += node;
  allocations = 0;
  runJob({.ranks = ranks, .nodes = nodes, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {1, ranks, 1, moecclOrderEspEp});
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.mode = "latency";
    config.experts = kExperts;
    config.topK = kChoices;
    config.hidden = kHidden;
    config.maxTokens = kTokens;
    config.algorithm = algorithm;
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid, &config, &route), comm);
    std::vector<std::uint16_t> tokens(std::size_t{kTokens} * kHidden), output(tokens.size());
    moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
    check(moecclRouteGetInfo(route, &info), comm);
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(info.maxRows) * kHidden);
    const std::vector<float> weights(std::size_t{kTokens} * kChoices, 1);
    std::vector<int32_t> chosen(weights.size());
    const auto pass = [&](int count, int shift) {
      for (std::size_t i = 0; i < chosen.size(); ++i)
        chosen[i] = static_cast<int32_t>((static_cast<int>(i) + rank * 3 + shift) % kExperts);
      moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
      routing.tokens = count;
      routing.experts = chosen.data();
      routing.weights = weights.data();
      moecclRows_t come = MOECCL_ROWS_INITIALIZER;
      moecclRoutePass_t opened = nullptr;
      check(moecclRouteBegin(route, &routing, nullptr, &opened), comm);
      check(moecclPassDispatch(opened, tokens.data(), rows.data(), nullptr), comm);
      check(moecclPassCombine(opened, rows.data(), output.data(), nullptr), comm);
      check(moecclPassGetRows(opened, &come), comm);
      check(moecclPassEnd(opened), comm);
    };
    for (int i = 0; i < 50; ++i) pass(before, i);
    counting = true;
    for (int i = 0; i < kPasses; ++i) pass(i % (kTokens + 1), i);
    counting = false;
    check(moecclRouteDestroy(route));
    check(moecclGridDestroy(grid), comm);
  });
  return allocations;
}

TEST(RouteAllocation, NoneInLatencyMode) {
#ifdef MOECCL_SANITIZED
  GTEST_SKIP() << "sanitizers replace operator new";
#endif
  for (const char* algorithm : {"node", "rank", "flat"}) {
    EXPECT_EQ(allocationsOf({1}, algorithm, 1), 0) << algorithm;
    // One allocation per step, by one of the ranks, would be kPasses.
    EXPECT_LT(allocationsOf({3, 2}, algorithm, kTokens), kPasses / 4) << algorithm;
  }
}

}  // namespace
}  // namespace moeccl::test

// A decoding step of a token route in latency mode: Set, Dispatch and Combine, called one after
// another, and replayed as a graph.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "moeccl/route.h"
#include "tests/api/results.h"
#include "tests/gpu/measurement.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

using test::check;

struct Sizes {
  std::int64_t tokens, embedding;
  int experts, choices;
};

// Memory of a rank's device.
class Memory {
 public:
  template <typename T>
  Memory(test::Device& device, const std::vector<T>& values)
      : Memory(device, values.size() * sizeof(T)) {
    device.put(at_, values.data(), values.size() * sizeof(T));
  }
  Memory(test::Device& device, std::size_t bytes) : device_(device), at_(device.allocate(bytes)) {}
  Memory(const Memory&) = delete;
  ~Memory() { device_.free(at_); }
  template <typename T = void>
  T* get() const {
    return reinterpret_cast<T*>(at_);
  }

 private:
  test::Device& device_;
  unsigned char* const at_;
};

class Route {
 public:
  Route(moecclGrid_t grid, const Sizes& sizes) {
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = sizes.experts;
    config.topK = sizes.choices;
    config.datatype = moecclBfloat16;
    config.mode = "latency";
    config.hidden = sizes.embedding;
    config.maxTokens = sizes.tokens;
    check(moecclRouteCreate(grid, &config, &it_));
  }
  Route(const Route&) = delete;
  ~Route() { moecclRouteDestroy(it_); }
  moecclRoute_t get() const { return it_; }
  std::size_t mostRows() const {
    moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
    check(moecclRouteGetInfo(it_, &info));
    return static_cast<std::size_t>(info.maxRows);
  }

 private:
  moecclRoute_t it_ = nullptr;
};

std::vector<std::int32_t> choicesOf(const Rank& rank, const Sizes& sizes) {
  std::mt19937 random(static_cast<unsigned>(rank.rank()));
  std::vector<std::int32_t> all, order(static_cast<std::size_t>(sizes.experts));
  for (std::size_t expert = 0; expert < order.size(); ++expert)
    order[expert] = static_cast<std::int32_t>(expert);
  for (std::int64_t token = 0; token < sizes.tokens; ++token) {
    std::ranges::shuffle(order, random);
    all.insert(all.end(), order.begin(), order.begin() + sizes.choices);
  }
  return all;
}

struct Microseconds {
  double called, replayed;
};

Microseconds measure(Rank& rank, moecclGrid_t grid, const Sizes& sizes) {
  test::Device& device = rank.device();
  const Route route(grid, sizes);
  const std::vector<std::int32_t> choices = choicesOf(rank, sizes);
  const Memory chosen(device, choices), weights(device, std::vector<float>(choices.size(), 0.125f));
  const std::size_t rowBytes = static_cast<std::size_t>(sizes.embedding) * 2;
  const std::size_t bytes = static_cast<std::size_t>(sizes.tokens) * rowBytes;
  const Memory tokens(device, std::vector<std::uint16_t>(bytes / 2, 0x3f80)), output(device, bytes),
      rows(device, route.mostRows() * rowBytes);
  const auto step = [&] {
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    routing.tokens = sizes.tokens;
    routing.experts = chosen.get<std::int32_t>();
    routing.weights = weights.get<float>();
    moecclRoutePass_t pass = nullptr;
    check(moecclRouteBegin(route.get(), &routing, rank.stream(), &pass));
    check(moecclPassDispatch(pass, tokens.get(), rows.get(), rank.stream()));
    check(moecclPassCombine(pass, rows.get(), output.get(), rank.stream()));
    check(moecclPassEnd(pass));
  };
  step();
  device.synchronize(rank.stream());
  const int calls = rank.quick() ? 1 : 50, measurements = rank.quick() ? 1 : 9;
  const auto median = [&](const auto& call) {
    std::vector<double> times;
    for (int i = 0; i <= measurements; ++i)  // the first is to warm up
      times.push_back(1e3 * device.milliseconds(rank.stream(), [&] {
        for (int j = 0; j < calls; ++j) call();
      }) / calls);
    std::ranges::sort(times.begin() + 1, times.end());
    return times[1 + static_cast<std::size_t>(measurements) / 2];
  };
  const double called = median(step);
  device.beginCapture(rank.stream());
  step();
  const test::Device::Graph graph = device.endCapture(rank.stream());
  const double replayed = median([&] { device.replay(graph, rank.stream()); });
  device.synchronize(rank.stream());
  return {called, replayed};
}

void print(const Rank& rank, const Sizes& sizes, const Microseconds& took) {
  std::printf("%6d%8lld%8lld%6d%4d%14.2f%14.2f\n", rank.ranks(),
              static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.embedding),
              sizes.experts, sizes.choices, took.called, took.replayed);
  std::fflush(stdout);
  for (const auto& [how, us] :
       {std::pair{"called", took.called}, std::pair{"replayed", took.replayed}})
    record({{"kernel", "route step of " + std::to_string(rank.ranks()) + ", " + how},
            {"type", std::string("bfloat16")},
            {"tokens", sizes.tokens},
            {"embedding", sizes.embedding},
            {"experts", sizes.experts},
            {"choices", sizes.choices},
            {"us", us}});
}

RANKS_BENCH(routeStep) {
  if (rank.rank() == 0)
    std::printf("%6s%8s%8s%6s%4s%14s%14s\n", "ranks", "tokens", "M", "E", "k", "called, us",
                "replayed, us");
  const moecclGrid_t grid = rank.gridInTurn(0, {1, rank.ranks(), 1, moecclOrderEspEp});
  for (const int experts : {64, 256})
    for (const std::int64_t tokens : {1, 16, 128}) {
      const Sizes sizes = rank.quick() ? Sizes{std::min<std::int64_t>(tokens, 3), 32, experts, 2}
                                       : Sizes{tokens, 7168, experts, 8};
      if (rank.quick() && tokens > 16) continue;
      rank.step(std::to_string(tokens) + " tokens, " + std::to_string(experts) + " experts", [&] {
        const Microseconds took = measure(rank, grid, sizes);
        if (rank.rank() == 0) print(rank, sizes, took);
      });
    }
}

}  // namespace
}  // namespace moeccl::gpu

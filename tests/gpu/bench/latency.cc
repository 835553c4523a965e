// Times of the steps of routes in latency mode.
#include <array>
#include <memory>
#include <numeric>

#include "kernels/latency_rows.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

// Rank 0 of 8 on a node: what has come to it before each step, as if all had sent.
class Route {
 public:
  static constexpr std::int32_t kRanks = 8;

  Route(const Sizes& sizes) {
    LatencyRows& it = rows_;
    it.ranks = it.positions = kRanks;
    it.nodes = it.shards = it.sums = 1;
    it.choices = sizes.choices;
    it.experts = sizes.experts;
    it.localExperts = sizes.experts / kRanks;
    it.weighted = true;
    it.datatype = moecclBfloat16;
    it.rowBytes = it.combineBytes = static_cast<std::size_t>(sizes.embedding) * 2;
    it.bucket = it.tokens = sizes.tokens;
    it.headerBytes = (static_cast<std::size_t>(it.bucket * it.choices) * 8 + 15) / 16 * 16;
    it.regionBytes = it.headerBytes + static_cast<std::size_t>(it.bucket) * it.rowBytes;
    std::vector<std::int32_t> ranks(kRanks);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<std::int64_t> termFirst(kRanks, 0);
    for (std::int32_t rank = 1; rank < kRanks; ++rank) {
      termFirst[static_cast<std::size_t>(rank)] = it.termRows;
      it.termRows += it.mostAt(rank);
    }
    it.slotOf = it.holders = keep(ranks);
    it.nodeOf = it.sumSource = it.sumNode = it.sumIndex = keep(std::vector<std::int32_t>(kRanks));
    it.termFirst = keep(termFirst);
    const std::int64_t most = it.ranks * it.bucket * it.most(), runs = it.localExperts * it.ranks;
    it.places = keep(
        std::vector<std::int32_t>(static_cast<std::size_t>(it.ranks * it.bucket * it.choices)));
    it.counts = keep(longs(runs));
    it.firsts = keep(longs(runs));
    it.begins = keep(longs(it.localExperts + 1));
    it.loads = keep(longs(it.experts + 1));
    it.regions = room(kRanks * static_cast<std::int64_t>(it.regionBytes));
    it.stage = room(most * rowBytes());
    it.terms = room(it.termRows * it.bucket * rowBytes());
    it.sumRows = room(it.bucket * rowBytes());
    it.back = room(it.bucket * rowBytes());
    it.input = room(most * rowBytes());
    it.output = room(std::max(most, it.tokens) * rowBytes());
    const Routing all({kRanks * sizes.tokens, sizes.embedding, sizes.experts, sizes.choices});
    it.chosen = keep(all.experts);
    it.weights = keep(all.weights);
    // As Set of each rank writes them.
    for (it.rank = kRanks - 1;; --it.rank) {
      const std::int64_t first = it.rank * it.tokens * it.choices;
      LatencyRows other = it;
      other.chosen += first, other.weights += first;
      moeccl::cuda::runLatency(LatencyStep::choices, other, nullptr);
      if (it.rank == 0) break;
    }
    cuda(cudaDeviceSynchronize(), "choices");
    for (const std::int32_t expert : all.experts) own_ += expert < it.localExperts ? 1 : 0;
  }

  std::int64_t rowBytes() const { return static_cast<std::int64_t>(rows_.rowBytes); }
  std::int64_t ownRows() const { return own_; }
  void run(LatencyStep step, cudaStream_t stream) const {
    moeccl::cuda::runLatency(step, rows_, stream);
  }

 private:
  static std::vector<std::int64_t> longs(std::int64_t count) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(count));
  }
  template <typename T>
  T* keep(const std::vector<T>& values) {
    const auto kept = std::make_shared<Device<T>>(values);
    memory_.push_back(kept);
    return kept->data();
  }
  std::byte* room(std::int64_t bytes) {
    const auto kept = std::make_shared<Turns<std::byte>>(1, bytes);
    memory_.push_back(kept);
    return kept->of(0);
  }

  LatencyRows rows_{};
  std::int64_t own_ = 0;
  std::vector<std::shared_ptr<void>> memory_;
};

struct Step {
  LatencyStep step;
  const char* name;
};
constexpr Step kSteps[] = {
    {LatencyStep::choices, "latency: choices"}, {LatencyStep::counts, "latency: counts"},
    {LatencyStep::begins, "latency: begins"},   {LatencyStep::places, "latency: places"},
    {LatencyStep::rows, "latency: rows"},       {LatencyStep::pack, "latency: packing"},
    {LatencyStep::sums, "latency: sums"},       {LatencyStep::finish, "latency: the end"}};

void measure(Bench& bench, const Sizes& sizes) {
  std::vector<std::unique_ptr<Route>> routes;
  for (int turn = 0; turn < (bench.quick() ? 1 : 4); ++turn)
    routes.push_back(std::make_unique<Route>(sizes));
  const int turns = static_cast<int>(routes.size());
  const double row = static_cast<double>(routes[0]->rowBytes());
  const double own = static_cast<double>(routes[0]->ownRows());
  const double tokens = static_cast<double>(sizes.tokens);
  // What steps need of each other is there after the first call of each.
  for (const Step& step : kSteps) {
    const auto bytes = [&] {
      switch (step.step) {
        case LatencyStep::rows:
        case LatencyStep::pack:
          return 2 * own * row;
        case LatencyStep::sums:
          return (sizes.choices + 1) * tokens * row;
        case LatencyStep::finish:
          return 2 * tokens * row;
        default:
          return 0.0;
      }
    };
    for (const auto& route : routes) route->run(step.step, nullptr);
    cuda(cudaDeviceSynchronize(), step.name);
    bench.measure({step.name, sizes, bytes()}, turns, [&](int turn, cudaStream_t stream) {
      routes[static_cast<std::size_t>(turn)]->run(step.step, stream);
    });
  }
  bench.measure({"latency: all steps", sizes, (4 * own + (sizes.choices + 3) * tokens) * row},
                turns, [&](int turn, cudaStream_t stream) {
                  for (const Step& step : kSteps)
                    routes[static_cast<std::size_t>(turn)]->run(step.step, stream);
                });
}

}  // namespace

void latency(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.decoding())
      measure(bench, {tokens, bench.embedding(), experts, Bench::kChoices});
}

}  // namespace moeccl::gpu

#include "perf/perf/route.h"

#include <moeccl/route.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "perf/common/statistics.h"

namespace moeccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<std::string> wordsOf(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (words.empty()) throw std::runtime_error("--text: " + file + " has no words");
  return words;
}

// Different experts of each token, [tokens][choices].
std::vector<std::int32_t> routingOf(const RouteOptions& options, const Job& job) {
  std::vector<double> weights(static_cast<std::size_t>(options.experts), 1);
  if (options.routing == "zipf")
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0 / static_cast<double>(i + 1);
  std::discrete_distribution<std::int32_t> any(weights.begin(), weights.end());
  std::vector<std::string> words;
  if (options.routing == "text") words = wordsOf(options.textFile);
  std::mt19937 random(options.seed * 1000003u + static_cast<unsigned>(job.rank()));
  std::vector<std::int32_t> chosen;
  for (std::int64_t token = 0; token < options.tokens; ++token) {
    // The same word has the same experts everywhere.
    if (!words.empty()) {
      const auto at = static_cast<std::size_t>(job.rank() * options.tokens + token);
      std::seed_seq seed(words[at % words.size()].begin(), words[at % words.size()].end());
      random.seed(seed);
    }
    std::vector<std::int32_t> its;
    if (options.routing == "hot") its.push_back(0);
    while (static_cast<int>(its.size()) < options.choices) {
      const std::int32_t expert = any(random);
      if (std::ranges::find(its, expert) == its.end()) its.push_back(expert);
    }
    chosen.insert(chosen.end(), its.begin(), its.end());
  }
  return chosen;
}

struct RouteDeleter {
  void operator()(moecclTokenRoute_t route) const { moecclTokenRouteDestroy(route); }
};
struct GridDeleter {
  void operator()(moecclGrid_t grid) const { moecclGridDestroy(grid); }
};

enum Part { kSet, kDispatch, kCombine, kParts };

class Measured {
 public:
  Measured(const RouteOptions& options, const Job& job, moecclGrid_t grid,
           const std::vector<std::int32_t>& chosen, const std::string& algorithm)
      : options_(options), job_(job), chosen_(chosen), name_(algorithm) {
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.experts = options.experts;
    config.topK = options.choices;
    config.datatype = options.dataType.value;
    config.hidden = options.hidden;
    config.maxTokens = options.tokens;
    latency_ = algorithm == "latency";
    if (latency_) config.mode = moecclRouteLatency;
    config.algorithm = algorithm == "auto" || latency_ ? nullptr : algorithm.c_str();
    moecclTokenRoute_t route = nullptr;
    ok(moecclTokenRouteCreate(grid, &config, &route), "make a route");
    route_.reset(route);
    if (latency_) {
      std::int64_t most = 0;
      ok(moecclTokenRouteGetMostRows(route, &most), "ask for the most rows");
      rows_.resize(rowBytes() * static_cast<std::size_t>(most));
    }
    // Small numbers and halves of them: no sum has to be rounded.
    weights_.assign(chosen.size(), 0.5f);
    tokens_.resize(rowBytes() * static_cast<std::size_t>(options.tokens));
    for (std::size_t row = 0; row < static_cast<std::size_t>(options.tokens); ++row)
      std::memset(tokens_.data() + row * rowBytes(), 0, rowBytes());
    output_.resize(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size() / options.dataType.bytes; ++i)
      store(i, static_cast<float>((i * 7 + static_cast<std::size_t>(job.rank())) % 5) - 2);
  }

  // The mean of some calls, each begun by all ranks at once; the slowest rank's. And of each step
  // what its three calls take, by the slowest rank of each.
  void turn() {
    for (int i = 0; i < options_.warmupIterations; ++i) step(nullptr);
    const auto count = static_cast<std::size_t>(options_.iterations);
    std::vector<double> mine(kParts * count), steps(count, 0);
    for (std::size_t i = 0; i < count; ++i) step(&mine[i * kParts]);
    const std::vector<double> slowest = overRanks(job_.gather(mine), mine.size(), Average::kMax);
    for (std::size_t part = 0; part < kParts; ++part) {
      double sum = 0;
      for (std::size_t i = 0; i < count; ++i) {
        sum += slowest[i * kParts + part];
        steps[i] += slowest[i * kParts + part];
      }
      times_[part].push_back(sum / options_.iterations);
    }
    steps_.insert(steps_.end(), steps.begin(), steps.end());
  }

  std::int64_t wrong() const {
    std::int64_t wrong = 0;
    const float sum = 0.5f * static_cast<float>(options_.choices * options_.esp);
    for (std::size_t i = 0; i < tokens_.size() / options_.dataType.bytes; ++i)
      wrong += load(output_, i) != sum * load(tokens_, i);
    return wrong;
  }

  void print(const Measured& first) const {
    const char* algorithm = nullptr;
    ok(moecclTokenRouteGetAlgorithm(route_.get(), &algorithm), "ask for the algorithm");
    const bool chosen = name_ == "auto" || latency_;
    const std::string name = chosen ? name_ + ": " + std::string(algorithm) : name_;
    std::printf("%-13s", name.c_str());
    for (int part = 0; part < kParts; ++part) {
      const Spread spread = spreadOf(times_[part]);
      const Spread ratio = ratioOf(first.times_[part], times_[part]);
      std::printf("  %9.3f (%8.3f) %6.2f", 1e3 * spread.median, 1e3 * spread.min, ratio.median);
    }
    std::printf("  %9.3f %9.3f %6.2f\n", 1e3 * quantileOf(steps_, 0.5),
                1e3 * quantileOf(steps_, 0.99),
                quantileOf(first.steps_, 0.5) / quantileOf(steps_, 0.5));
  }

 private:
  std::size_t rowBytes() const {
    return static_cast<std::size_t>(options_.hidden) * options_.dataType.bytes;
  }
  void ok(moecclResult_t result, const char* what) const { require(result, what, job_.comm()); }

  // Small numbers, in any of the types: the leading bits of a float are a bfloat16.
  void store(std::size_t i, float value) {
    if (options_.dataType.value == moecclFloat32) {
      std::memcpy(&tokens_[i * 4], &value, 4);
    } else if (options_.dataType.value == moecclBfloat16) {
      std::memcpy(&tokens_[i * 2], reinterpret_cast<const char*>(&value) + 2, 2);
    } else {
      const int size = static_cast<int>(std::abs(value));
      const std::uint16_t bits =
          static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (size == 0   ? 0
                                                                 : size == 1 ? 0x3c00
                                                                             : 0x4000));
      std::memcpy(&tokens_[i * 2], &bits, 2);
    }
  }
  float load(const std::vector<char>& from, std::size_t i) const {
    float value = 0;
    if (options_.dataType.value == moecclFloat32) {
      std::memcpy(&value, &from[i * 4], 4);
    } else if (options_.dataType.value == moecclBfloat16) {
      std::memcpy(reinterpret_cast<char*>(&value) + 2, &from[i * 2], 2);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &from[i * 2], 2);
      const int exponent = bits >> 10 & 31;
      value = static_cast<float>(exponent == 0 ? std::ldexp(bits & 1023, -24)
                                               : std::ldexp(1024 + (bits & 1023), exponent - 25));
      if ((bits & 0x8000) != 0) value = -value;
    }
    return value;
  }

  void step(double* seconds) {
    const auto timed = [&](Part part, const auto& call) {
      ok(moecclBarrier(job_.comm(), nullptr), "meet");
      const Clock::time_point begin = Clock::now();
      call();
      if (seconds != nullptr) seconds[part] += secondsSince(begin);
    };
    timed(kSet, [&] {
      ok(moecclTokenRouteSet(route_.get(), options_.tokens, chosen_.data(), weights_.data(),
                             nullptr),
         "set a routing");
    });
    if (!latency_) {
      std::int64_t rows = 0;
      ok(moecclTokenRouteGetCounts(route_.get(), &rows, nullptr), "count rows");
      if (rows_.size() < rowBytes() * static_cast<std::size_t>(rows))
        rows_.resize(rowBytes() * static_cast<std::size_t>(rows));
    }
    timed(kDispatch, [&] {
      ok(moecclTokenRouteDispatch(route_.get(), tokens_.data(), rows_.data(), nullptr), "dispatch");
    });
    timed(kCombine, [&] {
      ok(moecclTokenRouteCombine(route_.get(), rows_.data(), output_.data(), nullptr), "combine");
    });
  }

  const RouteOptions& options_;
  const Job& job_;
  const std::vector<std::int32_t>& chosen_;
  const std::string name_;
  bool latency_ = false;
  std::unique_ptr<moecclTokenRoute, RouteDeleter> route_;
  std::vector<float> weights_;
  std::vector<char> tokens_, rows_, output_;
  std::vector<double> times_[kParts], steps_;
};

// Rows that leave a node for each token: by node, by rank, by choice.
void printRows(const RouteOptions& options, const Job& job,
               const std::vector<std::int32_t>& chosen) {
  const int ep = job.ranks() / options.esp, share = options.experts / ep,
            longer = options.experts % ep;
  std::vector<int> node(static_cast<std::size_t>(job.ranks()));
  for (int rank = 0; rank < job.ranks(); ++rank)
    require(moecclCommNodeOfRank(job.comm(), rank, &node[static_cast<std::size_t>(rank)]),
            "ask for a node", job.comm());
  std::int64_t out[3] = {};
  for (std::size_t token = 0; token < static_cast<std::size_t>(options.tokens); ++token) {
    std::set<int> nodes, ranks;
    for (int choice = 0; choice < options.choices; ++choice) {
      const int expert = chosen[token * static_cast<std::size_t>(options.choices) +
                                static_cast<std::size_t>(choice)];
      const int position = expert < longer * (share + 1)
                               ? expert / (share + 1)
                               : longer + (expert - longer * (share + 1)) / share;
      for (int shard = 0; shard < options.esp; ++shard) {
        const int rank = position * options.esp + shard;
        if (node[static_cast<std::size_t>(rank)] == node[static_cast<std::size_t>(job.rank())])
          continue;
        nodes.insert(node[static_cast<std::size_t>(rank)]);
        ranks.insert(rank);
        ++out[2];
      }
    }
    out[0] += static_cast<std::int64_t>(nodes.size());
    out[1] += static_cast<std::int64_t>(ranks.size());
  }
  double perToken[3];
  for (int i = 0; i < 3; ++i)
    perToken[i] = static_cast<double>(job.sum(out[i])) /
                  static_cast<double>(std::max<std::int64_t>(1, options.tokens * job.ranks()));
  if (job.rank() == 0)
    std::printf(
        "# rows that leave a node for each token: %.2f by node, %.2f by rank, %.2f by choice\n",
        perToken[0], perToken[1], perToken[2]);
}

}  // namespace

std::int64_t measureRoutes(const RouteOptions& options, const Job& job) {
  if (job.ranks() % options.esp != 0)
    throw std::runtime_error("--esp: " + std::to_string(options.esp) + " does not divide " +
                             std::to_string(job.ranks()) + " ranks");
  moecclGrid_t made = nullptr;
  require(moecclGridCreate(job.comm(),
                           {1, job.ranks() / options.esp, options.esp, moecclOrderEspEp}, &made),
          "make a grid", job.comm());
  const std::unique_ptr<moecclGrid, GridDeleter> grid(made);
  const std::vector<std::int32_t> chosen = routingOf(options, job);
  std::vector<std::unique_ptr<Measured>> all;
  for (const std::string& algorithm : options.algorithms)
    all.push_back(std::make_unique<Measured>(options, job, grid.get(), chosen, algorithm));
  if (job.rank() == 0) {
    std::printf(
        "# %d ranks on %zu nodes, %lld tokens each, %d of %d experts (%s), rows of %lld %s\n",
        job.ranks(), job.ranksPerNode().size(), static_cast<long long>(options.tokens),
        options.choices, options.experts, options.routing.c_str(),
        static_cast<long long>(options.hidden), options.dataType.name);
  }
  printRows(options, job, chosen);
  for (int turn = 0; turn < options.repetitions; ++turn)
    for (const auto& each : all) each->turn();
  std::int64_t wrong = 0;
  for (const auto& each : all) wrong += job.sum(each->wrong());
  if (job.rank() == 0) {
    std::printf("# ms: median (least) of %d turns; times faster than %s\n", options.repetitions,
                options.algorithms[0].c_str());
    std::printf("%-13s  %27s  %27s  %27s  %27s\n", "#", "set", "dispatch", "combine",
                "a step: P50, P99");
    for (const auto& each : all) each->print(*all[0]);
    std::printf("# %lld elements wrong\n", static_cast<long long>(wrong));
  }
  return wrong;
}

}  // namespace moeccl::perf

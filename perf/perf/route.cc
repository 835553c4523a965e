// Times Begin, Dispatch and Combine of routes in turns, with experts that change nothing, and
// checks the tokens that come back.
#include "perf/perf/route.h"

#include <moeccl/route.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "perf/common/statistics.h"
#include "perf/perf/route_report.h"

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
  void operator()(moecclRoute_t route) const { moecclRouteDestroy(route); }
};
struct PassEnder {
  void operator()(moecclRoutePass_t pass) const { moecclPassEnd(pass); }
};

// Small numbers, in any of the wide types: the leading bits of a float are a bfloat16.
void store(const DataType& type, std::byte* to, float value) {
  if (type.value == moecclFloat32) {
    std::memcpy(to, &value, 4);
  } else if (type.value == moecclBfloat16) {
    std::memcpy(to, reinterpret_cast<const std::byte*>(&value) + 2, 2);
  } else {
    const int size = static_cast<int>(std::abs(value));
    const auto bits = static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (size == 0   ? 0
                                                                             : size == 1 ? 0x3c00
                                                                                         : 0x4000));
    std::memcpy(to, &bits, 2);
  }
}

float load(const DataType& type, const std::byte* from) {
  float value = 0;
  if (type.value == moecclFloat32) {
    std::memcpy(&value, from, 4);
  } else if (type.value == moecclBfloat16) {
    std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, from, 2);
  } else {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, 2);
    const int exponent = bits >> 10 & 31;
    value = static_cast<float>(exponent == 0 ? std::ldexp(bits & 1023, -24)
                                             : std::ldexp(1024 + (bits & 1023), exponent - 25));
    if ((bits & 0x8000) != 0) value = -value;
  }
  return value;
}

class Measured {
 public:
  Measured(const RouteOptions& options, const Job& job, moecclGrid_t grid,
           const std::vector<std::int32_t>& chosen, const std::string& algorithm)
      : options_(options),
        job_(job),
        tokens_(job.memory()),
        rows_(job.memory()),
        made_(job.memory()),
        output_(job.memory()),
        chosen_(job.memory()),
        weights_(job.memory()) {
    result_.name = algorithm;
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = options.experts;
    config.topK = options.choices;
    config.datatype = options.combined.value;
    config.tokenDatatype = options.dataType.value;
    config.hidden = options.hidden;
    config.maxTokens = options.tokens;
    config.wire = wireOf(algorithm);
    const std::string way = algorithm.substr(0, algorithm.find(':'));
    latency_ = way == "latency";
    if (latency_) config.mode = "latency";
    config.algorithm = way == "auto" || latency_ ? nullptr : way.c_str();
    moecclRoute_t route = nullptr;
    ok(moecclRouteCreate(grid, &config, &route), "make a route");
    route_.reset(route);
    if (latency_) {
      moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
      ok(moecclRouteGetInfo(route, &info), "ask for the most rows");
      makeRoomFor(info.maxRows);
    }
    fill(chosen_, chosen.data(), chosen.size() * sizeof(std::int32_t));
    const std::vector<float> weights(chosen.size(), kWeight);
    fill(weights_, weights.data(), weights.size() * sizeof(float));
    fillTokens();
  }

  // Seconds of the parts of some steps, [step][part]. All ranks begin each part at once.
  std::vector<double> turn() {
    for (int i = 0; i < options_.warmupIterations; ++i) step(nullptr);
    std::vector<double> mine(kRouteParts * static_cast<std::size_t>(options_.iterations));
    for (std::size_t at = 0; at < mine.size(); at += kRouteParts) step(&mine[at]);
    return mine;
  }

  // `turns` are those of the slowest rank of each part. A part's time in a turn is the mean, a
  // step's that of its parts together. Collective.
  const RouteResult& finish(const Turns& turns) {
    for (const std::vector<double>& turn : turns.values) {
      std::array<double, kRouteParts> sums{};
      for (std::size_t at = 0; at < turn.size(); at += kRouteParts) {
        double step = 0;
        for (std::size_t part = 0; part < kRouteParts; ++part)
          sums[part] += turn[at + part], step += turn[at + part];
        result_.steps.push_back(step);
      }
      for (std::size_t part = 0; part < kRouteParts; ++part)
        result_.times[part].push_back(sums[part] / options_.iterations);
    }
    result_.algorithm = rows().algorithm;
    result_.wrong = job_.sum(wrong());
    return result_;
  }

 private:
  // Sums of small numbers and halves of them need no rounding.
  static constexpr float kWeight = 0.5f;

  std::size_t elements() const {
    return static_cast<std::size_t>(options_.tokens * options_.hidden);
  }
  std::size_t rowBytes() const {
    const auto hidden = static_cast<std::size_t>(options_.hidden);
    return hidden * options_.dataType.bytes +
           (options_.isQuantised() ? hidden / 128 * sizeof(float) : 0);
  }
  std::size_t combineRowBytes() const {
    return static_cast<std::size_t>(options_.hidden) * options_.combined.bytes;
  }
  void ok(moecclResult_t result, const char* what) const { require(result, what, job_.comm()); }
  moecclStream_t stream() const { return job_.memory().stream(); }

  void fill(Buffer& buffer, const void* from, std::size_t bytes) {
    buffer.atLeast(bytes);
    job_.memory().put(buffer.data(), from, bytes);
  }

  float token(std::size_t element) const {
    return static_cast<float>((element * 7 + static_cast<std::size_t>(job_.rank())) % 5) - 2;
  }

  void fillTokens() {
    std::vector<std::byte> wide(elements() * options_.combined.bytes);
    for (std::size_t i = 0; i < elements(); ++i)
      store(options_.combined, &wide[i * options_.combined.bytes], token(i));
    output_.atLeast(wide.size());
    if (!options_.isQuantised()) return fill(tokens_, wide.data(), wide.size());
    fill(made_, wide.data(), wide.size());
    tokens_.atLeast(static_cast<std::size_t>(options_.tokens) * rowBytes());
    ok(moecclQuantizeRows(options_.tokens, options_.hidden, options_.combined.value, made_.data(),
                          options_.dataType.value, tokens_.data(), job_.comm(), stream()),
       "quantise tokens");
    job_.memory().synchronize();
  }

  void makeRoomFor(std::int64_t rows) {
    rows_.atLeast(static_cast<std::size_t>(rows) * rowBytes());
    if (options_.isQuantised()) made_.atLeast(static_cast<std::size_t>(rows) * combineRowBytes());
  }

  // The rows as experts that change nothing return them.
  const std::byte* expertsOutput() {
    if (!options_.isQuantised()) return rows_.data();
    ok(moecclDequantizeRows(rows().rows, options_.hidden, options_.dataType.value, rows_.data(),
                            options_.combined.value, made_.data(), job_.comm(), stream()),
       "dequantise rows");
    return made_.data();
  }

  moecclRows_t rows() const {
    moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
    ok(moecclPassGetRows(pass_.get(), &rows), "count rows");
    return rows;
  }

  std::int64_t wrong() const {
    std::vector<std::byte> output(elements() * options_.combined.bytes);
    job_.memory().get(output.data(), output_.data(), output.size());
    const float sum = kWeight * static_cast<float>(options_.choices * options_.esp);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < elements(); ++i)
      wrong += load(options_.combined, &output[i * options_.combined.bytes]) != sum * token(i);
    return wrong;
  }

  void step(double* seconds) {
    const auto timed = [&](RoutePart part, const auto& call) {
      ok(moecclBarrier(job_.comm(), stream()), "meet");
      job_.memory().synchronize();
      const Clock::time_point begin = Clock::now();
      call();
      job_.memory().synchronize();
      if (seconds != nullptr) seconds[part] += secondsSince(begin);
    };
    timed(kBegin, [&] {
      moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
      routing.tokens = options_.tokens;
      routing.experts = reinterpret_cast<const std::int32_t*>(chosen_.data());
      routing.weights = reinterpret_cast<const float*>(weights_.data());
      pass_.reset();
      moecclRoutePass_t pass = nullptr;
      ok(moecclRouteBegin(route_.get(), &routing, stream(), &pass), "begin a pass");
      pass_.reset(pass);
    });
    if (!latency_) makeRoomFor(rows().rows);
    timed(kDispatch, [&] {
      ok(moecclPassDispatch(pass_.get(), tokens_.data(), rows_.data(), stream()), "dispatch");
    });
    const std::byte* const made = expertsOutput();
    timed(kCombine,
          [&] { ok(moecclPassCombine(pass_.get(), made, output_.data(), stream()), "combine"); });
  }

  const RouteOptions& options_;
  const Job& job_;
  RouteResult result_;
  bool latency_ = false;
  std::unique_ptr<moecclRoute, RouteDeleter> route_;
  std::unique_ptr<moecclRoutePass, PassEnder> pass_;  // the last one
  // Rows as they go to experts and, where these are quantised, as they return.
  Buffer tokens_, rows_, made_, output_;
  Buffer chosen_, weights_;
};

// Collective.
RowsPerToken rowsPerToken(const RouteOptions& options, const Job& job,
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
  const auto perToken = [&](std::int64_t rows) {
    return static_cast<double>(job.sum(rows)) /
           static_cast<double>(std::max<std::int64_t>(1, options.tokens * job.ranks()));
  };
  const double byNode = perToken(out[0]), byRank = perToken(out[1]);
  return {byNode, byRank, perToken(out[2])};
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
  const Grid grid(made);
  const std::vector<std::int32_t> chosen = routingOf(options, job);
  if (options.drawn > 0) return measureDrawn(options, job, grid.get(), chosen);
  const RowsPerToken rows = rowsPerToken(options, job, chosen);
  std::optional<RouteReport> report;
  if (job.rank() == 0) report.emplace(options, job, rows);
  std::vector<std::unique_ptr<Measured>> all;
  for (const std::string& algorithm : options.algorithms)
    all.push_back(std::make_unique<Measured>(options, job, grid.get(), chosen, algorithm));
  Draws draws(options.seed);
  const std::vector<Turns> turns =
      takeTurns(all.size(), options.repetitions, draws, Average::kMax, job.overRanks(),
                [&](std::size_t i) { return all[i]->turn(); });
  std::vector<RouteResult> results;
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    results.push_back(all[i]->finish(turns[i]));
    wrong += results.back().wrong;
  }
  if (report) report->finish(results);
  return wrong;
}

}  // namespace moeccl::perf

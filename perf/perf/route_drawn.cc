// `moeccl-perf route --drawn`: passes of one route, each with another number of tokens on each
// rank.
#include <moeccl/route.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>

#include "perf/common/statistics.h"
#include "perf/perf/route.h"

namespace moeccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

// Rows and seconds of one pass, each of the rank with the most.
struct Pass {
  double rows, seconds;
};

double mebibytesInUse() {
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// seconds = start + perRow * rows, by least squares.
struct Line {
  explicit Line(const std::vector<Pass>& passes) {
    const auto count = static_cast<double>(passes.size());
    double rows = 0, seconds = 0, squares = 0, products = 0;
    for (const Pass& pass : passes) {
      rows += pass.rows / count;
      seconds += pass.seconds / count;
    }
    for (const Pass& pass : passes) {
      squares += (pass.rows - rows) * (pass.rows - rows);
      products += (pass.rows - rows) * (pass.seconds - seconds);
    }
    perRow = squares > 0 ? std::max(0.0, products / squares) : 0;
    start = std::max(0.0, seconds - perRow * rows);
  }
  double at(double rows) const { return start + perRow * rows; }

  double start, perRow;
};

class Drawn {
 public:
  Drawn(const RouteOptions& options, const Job& job, moecclGrid_t grid,
        const std::vector<std::int32_t>& chosen)
      : options_(options),
        job_(job),
        chosen_(chosen),
        random_(options.seed * 7919u + static_cast<unsigned>(job.rank())) {
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = options.experts;
    config.topK = options.choices;
    config.datatype = moecclFloat32;
    config.hidden = options.hidden;
    config.capacityFactor = options.capacityFactor;
    require(moecclRouteCreate(grid, &config, &route_), "make a route", job.comm());
    const auto elements = static_cast<std::size_t>(options.tokens * options.hidden);
    for (std::size_t i = 0; i < elements; ++i)
      tokens_.push_back(static_cast<float>((i * 7 + static_cast<std::size_t>(job.rank())) % 5));
    output_.resize(elements);
    weights_.assign(chosen.size(), 0.5f);
  }
  ~Drawn() { moecclRouteDestroy(route_); }
  Drawn(const Drawn&) = delete;
  Drawn& operator=(const Drawn&) = delete;

  Pass run() {
    const std::int64_t count =
        static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(options_.tokens + 1));
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    routing.tokens = count;
    routing.experts = chosen_.data();
    routing.weights = weights_.data();
    ok(moecclBarrier(job_.comm(), nullptr), "meet");
    const Clock::time_point begun = Clock::now();
    moecclRoutePass_t pass = nullptr;
    moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
    ok(moecclRouteBegin(route_, &routing, nullptr, &pass), "begin a pass");
    ok(moecclPassGetRows(pass, &rows), "count rows");
    const auto room = static_cast<std::size_t>(rows.rows * options_.hidden);
    if (rows_.size() < room) rows_.resize(room);
    ok(moecclPassDispatch(pass, tokens_.data(), rows_.data(), nullptr), "dispatch");
    ok(moecclPassCombine(pass, rows_.data(), output_.data(), nullptr), "combine");
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    ok(moecclPassEnd(pass), "end a pass");
    // Each choice brings half of its token back, from each shard, where nothing is dropped.
    const float all = 0.5f * static_cast<float>(options_.choices * options_.esp);
    for (std::int64_t i = 0; i < count * options_.hidden && options_.capacityFactor == 0; ++i)
      wrong_ += output_[static_cast<std::size_t>(i)] != all * tokens_[static_cast<std::size_t>(i)];
    return {greatest(static_cast<double>(count * options_.choices + rows.rows)), greatest(seconds)};
  }
  double greatest(double mine) const {
    const std::vector<double> all = job_.gather(std::vector<double>{mine});
    return *std::ranges::max_element(all);
  }
  std::int64_t wrong() const { return job_.sum(wrong_); }

 private:
  void ok(moecclResult_t result, const char* what) const { require(result, what, job_.comm()); }

  const RouteOptions& options_;
  const Job& job_;
  const std::vector<std::int32_t>& chosen_;
  std::mt19937_64 random_;
  moecclRoute_t route_ = nullptr;
  std::vector<float> tokens_, rows_, output_, weights_;
  std::int64_t wrong_ = 0;
};

}  // namespace

std::int64_t measureDrawn(const RouteOptions& options, const Job& job, moecclGrid_t grid,
                          const std::vector<std::int32_t>& chosen) {
  Drawn drawn(options, job, grid, chosen);
  std::vector<Pass> passes;
  double before = 0;
  for (int i = 0; i < options.drawn; ++i) {
    if (i == options.drawn / 2) before = drawn.greatest(mebibytesInUse());
    passes.push_back(drawn.run());
  }
  const double after = drawn.greatest(mebibytesInUse());
  const std::int64_t wrong = drawn.wrong();
  if (job.rank() != 0) return wrong;
  const Line line(passes);
  std::vector<double> seconds;
  int late = 0;
  for (const Pass& pass : passes) {
    seconds.push_back(pass.seconds);
    late += pass.seconds > 3 * line.at(pass.rows);
  }
  std::printf("# %d passes of 0 to %lld tokens, drawn anew on each of %d ranks, ", options.drawn,
              static_cast<long long>(options.tokens), job.ranks());
  if (options.capacityFactor > 0)
    std::printf("capacity factor %g", options.capacityFactor);
  else
    std::printf("dropless");
  std::printf(
      ": P50 %.3f ms, P99 %.3f ms\n"
      "# a pass takes %.3f ms, and %.2f us for each row that the fullest rank sends or gets\n"
      "# %d passes took more than 3 times that\n"
      "# memory of the fullest rank: %.1f MiB after half of them, %.1f MiB at the end\n"
      "# %lld elements wrong\n",
      1e3 * quantileOf(seconds, 0.5), 1e3 * quantileOf(seconds, 0.99), 1e3 * line.start,
      1e6 * line.perRow, late, before, after, static_cast<long long>(wrong));
  return wrong;
}

}  // namespace moeccl::perf

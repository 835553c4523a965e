// Prints a line for each algorithm, with its times beside those of the first one, and writes the
// same as JSON.
#include "perf/perf/route_report.h"

#include <cstdio>

namespace moeccl::perf {
namespace {

using nlohmann::ordered_json;

constexpr int kSchemaVersion = 2;
constexpr std::array kParts = {"begin", "dispatch", "combine"};

ordered_json toJson(const RouteResult& result, const RouteResult& reference) {
  ordered_json json = {{"name", result.name}, {"algorithm", result.algorithm}};
  for (std::size_t part = 0; part < kRouteParts; ++part) {
    std::vector<double> micros = result.times[part];
    for (double& time : micros) time *= 1e6;
    json[kParts[part]] = {{"timesUs", micros},
                          {"timeUs", toJson(spreadOf(micros))},
                          {"ratio", toJson(ratioOf(reference.times[part], result.times[part]))}};
  }
  json["step"] = {
      {"p50Us", 1e6 * quantileOf(result.steps, 0.5)},
      {"p99Us", 1e6 * quantileOf(result.steps, 0.99)},
      {"ratio", quantileOf(reference.steps, 0.5) / quantileOf(result.steps, 0.5)},
  };
  json["wrong"] = result.wrong;
  json["reference"] = reference.name;
  return json;
}

void print(const RouteResult& result, const RouteResult& reference) {
  const std::string name =
      result.name == result.algorithm ? result.name : result.name + ": " + result.algorithm;
  std::printf("%-13s", name.c_str());
  for (std::size_t part = 0; part < kRouteParts; ++part) {
    const Spread spread = spreadOf(result.times[part]);
    const Spread ratio = ratioOf(reference.times[part], result.times[part]);
    std::printf("  %9.3f (%8.3f) %6.2f", 1e3 * spread.median, 1e3 * spread.min, ratio.median);
  }
  std::printf("  %9.3f %9.3f %6.2f\n", 1e3 * quantileOf(result.steps, 0.5),
              1e3 * quantileOf(result.steps, 0.99),
              quantileOf(reference.steps, 0.5) / quantileOf(result.steps, 0.5));
}

}  // namespace

RouteReport::RouteReport(const RouteOptions& options, const Job& job, const RowsPerToken& rows)
    : options_(options),
      json_("moeccl-perf-route", kSchemaVersion, options.jsonFile, options.commandLine, job) {
  json_.describe({
      {"iterations", options.iterations},
      {"warmupIterations", options.warmupIterations},
      {"repetitions", options.repetitions},
      {"esp", options.esp},
      {"experts", options.experts},
      {"topk", options.choices},
      {"tokens", options.tokens},
      {"hidden", options.hidden},
      {"type", options.dataType.name},
      {"combineType", options.combined.name},
      {"routing", options.routing},
      {"seed", options.seed},
      {"rowsPerToken", {{"node", rows.node}, {"rank", rows.rank}, {"choice", rows.choice}}},
      {"results", ordered_json::array()},
  });
  json_.printHead("moeccl-perf route");
  std::printf("# %lld tokens of each rank, %d of %d experts (%s), rows of %lld %s\n",
              static_cast<long long>(options.tokens), options.choices, options.experts,
              options.routing.c_str(), static_cast<long long>(options.hidden),
              options.dataType.name);
  std::printf(
      "# rows that leave a node for each token: %.2f by node, %.2f by rank, %.2f by choice\n",
      rows.node, rows.rank, rows.choice);
}

void RouteReport::finish(const std::vector<RouteResult>& results) {
  std::printf("# ms: median (least) of %d turns; times faster than %s\n", options_.repetitions,
              results[0].name.c_str());
  std::printf("%-13s  %27s  %27s  %27s  %27s\n", "#", kParts[0], kParts[1], kParts[2],
              "a step: P50, P99");
  std::int64_t wrong = 0;
  for (const RouteResult& result : results) {
    print(result, results[0]);
    json_.add(toJson(result, results[0]));
    wrong += result.wrong;
  }
  std::printf("# %lld elements wrong\n", static_cast<long long>(wrong));
  json_.write();
}

}  // namespace moeccl::perf

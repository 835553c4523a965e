// Prints the table and the sentences beside it.
#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace quickstart {
namespace {

constexpr double kMega = 1e6;
// Above so many nodes a column for each would be too wide.
constexpr int kColumns = 4;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <typename... Values>
std::string format(const char* how, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, how, values...);
  return text;
}

std::vector<std::int64_t> payload(const Report& report, const Row& row) {
  return payloadLeaving(report.topology, report.problem.grid, report.problem.layer.config,
                        report.problem.expected.capacity, row.schedule, row.algorithm);
}

// Bytes per pass that each node has sent, as its first rank has counted them.
std::vector<double> sentByNode(const Report& report, const Row& row) {
  std::vector<double> sent(static_cast<std::size_t>(report.topology.nodes));
  for (int rank = report.topology.ranks() - 1; rank >= 0; --rank)
    sent[report.topology.nodeOfRank[rank]] = row.sentByRank[rank];
  return sent;
}

double busiest(const Report& report, const Row& row) {
  const std::vector<double> sent = sentByNode(report, row);
  return *std::max_element(sent.begin(), sent.end());
}

std::vector<std::string> header(const Report& report) {
  std::vector<std::string> cells = {"schedule", "algorithm", "ms per layer", "(least to most)"};
  if (report.topology.nodes > kColumns)
    cells.insert(cells.end(), {"node sent least", "node sent most"});
  else
    for (int node = 0; node < report.topology.nodes; ++node)
      cells.push_back("node" + std::to_string(node) + " sent");
  cells.insert(cells.end(), {"payload", "uplink", "largest error"});
  return cells;
}

std::vector<std::string> cellsOf(const Report& report, const Row& row) {
  const bool counted = !report.options.uplinkCounter.empty();
  const auto [least, most] = std::minmax_element(row.seconds.begin(), row.seconds.end());
  std::vector<std::string> cells = {nameOf(row.schedule), row.algorithm,
                                    format("%.1f", 1e3 * median(row.seconds)),
                                    format("(%.1f to %.1f)", 1e3 * *least, 1e3 * *most)};
  const auto megabytes = [&](double bytes) {
    return counted ? format("%.3f MB", bytes / kMega) : std::string("-");
  };
  std::vector<double> sent = sentByNode(report, row);
  if (report.topology.nodes > kColumns) {
    std::sort(sent.begin(), sent.end());
    sent = {sent.front(), sent.back()};
  }
  for (double bytes : sent) cells.push_back(megabytes(bytes));
  const std::vector<std::int64_t> predicted = payload(report, row);
  cells.push_back(
      format("%.3f MB",
             static_cast<double>(*std::max_element(predicted.begin(), predicted.end())) / kMega));
  cells.push_back(counted && report.options.uplinkRate > 0
                      ? format("%.0f %%", 100 * busiest(report, row) * 8 /
                                              report.options.uplinkRate / median(row.seconds))
                      : std::string("-"));
  cells.push_back(format("%.1e", row.largestError) + (row.wrong.empty() ? "" : "  WRONG"));
  return cells;
}

void printText(const Report& report) {
  const std::int64_t choices =
      std::accumulate(report.assigned.begin(), report.assigned.end(), std::int64_t{0});
  const double mean = static_cast<double>(choices) / static_cast<double>(report.assigned.size());
  const auto most = *std::max_element(report.assigned.begin(), report.assigned.end());
  std::printf(
      "Text:      %lld words, %lld different ones. The busiest expert is chosen %.2f times as "
      "often as\n"
      "           the mean; %.1f %% of all choices find no place (capacity factor %g) and are "
      "dropped.\n",
      static_cast<long long>(report.words), static_cast<long long>(report.differentWords),
      static_cast<double>(most) / mean,
      100.0 * static_cast<double>(report.dropped) / static_cast<double>(choices),
      report.problem.layer.config.capacityFactor);
}

void printFastest(const Report& report) {
  const auto [fastest, slowest] = std::minmax_element(
      report.rows.begin(), report.rows.end(),
      [](const Row& a, const Row& b) { return median(a.seconds) < median(b.seconds); });
  std::printf("Fastest:   %s with %s, %.2f times as fast as %s with %s.\n",
              nameOf(fastest->schedule), fastest->algorithm.c_str(),
              median(slowest->seconds) / median(fastest->seconds), nameOf(slowest->schedule),
              slowest->algorithm.c_str());
}

// The first row of a schedule, whose algorithm every other is compared with.
const Row* firstOf(const Report& report, moecclSchedule_t schedule) {
  for (const Row& row : report.rows)
    if (row.schedule == schedule) return &row;
  return nullptr;
}

double largestPayload(const Report& report, const Row& row) {
  const std::vector<std::int64_t> bytes = payload(report, row);
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
}

void printSchedules(const Report& report) {
  const Row* const baseline = firstOf(report, moecclScheduleBaseline);
  bool counted = false;
  if (baseline != nullptr && !report.options.uplinkCounter.empty() &&
      largestPayload(report, *baseline) > 0)
    for (const Row& row : report.rows) {
      if (row.schedule != moecclScheduleS1) continue;
      std::printf("%s S1 with %s sends %.2f times the baseline's bytes (predicted: %.2f).\n",
                  counted ? "          " : "Schedules:", row.algorithm.c_str(),
                  busiest(report, row) / busiest(report, *baseline),
                  largestPayload(report, row) / largestPayload(report, *baseline));
      counted = true;
    }
  if (report.problem.grid.nMp > 1)
    std::printf(
        "%s Under S1 each token is computed once, under the baseline %d times, once for each\n"
        "           rank of its MP group.\n",
        counted ? "          " : "Schedules:", report.problem.grid.nMp);
}

void printAlgorithms(const Report& report) {
  const Topology& topology = report.topology;
  if (topology.nodes < 2) return;
  const auto here = std::count(topology.nodeOfRank.begin(), topology.nodeOfRank.end(), 0);
  const auto others = topology.ranks() - here;
  std::printf(
      "Algorithms: the baseline's all send the same payload between nodes: an all-to-all of all "
      "ranks "
      "as\n"
      "           %lld messages out of node0 (linear, pairwise) or %lld larger ones "
      "(hierarchical), "
      "which\n"
      "           takes one more step inside the node, and is meant for small messages. S1's flat "
      "sends "
      "a\n"
      "           token once to each of the %d shards of its expert, dedup once to their node.\n",
      static_cast<long long>(here * others), static_cast<long long>(others),
      report.problem.grid.nEsp);
}

}  // namespace

void printTable(const Report& report) {
  std::vector<std::vector<std::string>> lines = {header(report)};
  for (const Row& row : report.rows) lines.push_back(cellsOf(report, row));
  std::vector<std::size_t> widths(lines[0].size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::printf("\n");
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      std::printf(i < 2 ? "%s%-*s" : "%s%*s", i == 0 ? "" : "  ", static_cast<int>(widths[i]),
                  line[i].c_str());
    std::printf("\n");
  }
  std::printf("\n");
}

void printReading(const Report& report) {
  printFastest(report);
  printSchedules(report);
  printAlgorithms(report);
  printText(report);
}

}  // namespace quickstart

// Reads a profile's file, and prints for each group the algorithms with the least alpha and beta,
// and what links cost.
#include "perf/fit/table.h"

#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

namespace moeccl::perf {
namespace {

using nlohmann::json;

struct Row {
  std::string algorithm;
  double alpha, beta;  // seconds of no bytes, and of each one more when there are many
  double error;
};

[[gnu::format(printf, 1, 2)]] std::string line(const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

Row rowOf(const json& curve) {
  const json& fit = curve.at("fit");
  return {curve.at("algorithm"), fit.at("alpha"), fit.at("beta"), fit.at("medianError")};
}

// Which links samples tell of; the others are typical ones.
struct Passed {
  bool inNode = false, between = false;

  // "2x4", "1x4+1x3", "mp2,ep4,esp2 on 2x4", each perhaps with ", alone"; "1@0+2@1": ranks @ node.
  void add(const std::string& where) {
    const std::size_t grid = where.find(" on ");
    std::istringstream runs(grid == std::string::npos ? where : where.substr(grid + 4));
    std::map<int, int> ranksOfNode;
    for (std::string run; std::getline(runs, run, '+');) {
      int first = 0, second = 0;
      if (std::sscanf(run.c_str(), "%d@%d", &first, &second) == 2)
        ranksOfNode[second] += first;
      else if (std::sscanf(run.c_str(), "%dx%d", &first, &second) == 2)
        while (first-- > 0) ranksOfNode[static_cast<int>(ranksOfNode.size())] = second;
    }
    between = between || ranksOfNode.size() > 1;
    for (const auto& [node, ranks] : ranksOfNode) inNode = inNode || ranks > 1;
  }
};

std::string linksOf(const json& costs, const Passed& passed) {
  const auto cost = [&](const char* name) { return costs.at(name).get<double>(); };
  const std::string inNode =
      passed.inNode
          ? line("%.3g us and %.3g GB/s for a rank inside a node",
                 (cost("overheadInNode") + cost("latencyInNode")) * 1e6, 1e-9 / cost("betaInNode"))
          : "not measured inside a node";
  const std::string between = passed.between
                                  ? line("%.3g us between nodes, whose uplink carries %.3g MB/s",
                                         (cost("overheadBetween") + cost("latencyBetween")) * 1e6,
                                         1e-6 / cost("betaUplink"))
                                  : "not measured between nodes";
  return "Links: " + inNode + "; " + between + "\n";
}

}  // namespace

std::string tableOf(const std::string& profileFile) {
  std::ifstream file(profileFile);
  const json profile = json::parse(file);
  using Group = std::pair<std::string, std::string>;
  std::vector<Group> order;
  std::map<Group, std::vector<Row>> groups;
  Passed passed;
  for (const json& curve : profile.at("curves")) {
    passed.add(curve.at("where"));
    const Group group{curve.at("collective"), curve.at("where")};
    if (group.second.ends_with(", alone")) continue;
    if (groups[group].empty()) order.push_back(group);
    groups[group].push_back(rowOf(curve));
  }
  std::string text;
  if (const auto links = profile.find("links"); links != profile.end())
    text += linksOf(links->at("costs"), passed);
  if (order.empty()) return text;
  text +=
      "A call takes alpha + beta x bytes of a rank's send buffer; of each group the algorithms "
      "with "
      "the least of both (\"-\": samples do not tell):\n";
  text += line("%-17s %-24s %-22s %10s %10s %7s\n", "collective", "group", "algorithm", "alpha us",
               "beta ns/B", "error");
  for (const Group& group : order) {
    const std::vector<Row>& rows = groups[group];
    const Row* small = &rows[0];
    const Row* large = nullptr;
    for (const Row& row : rows) {
      if (row.alpha < small->alpha) small = &row;
      if (row.beta > 0 && (large == nullptr || row.beta < large->beta)) large = &row;
    }
    for (const Row* row : {small, large}) {
      text += line("%-17s %-24s %-22s %10.1f %10s %5.0f %%\n", group.first.c_str(),
                   group.second.c_str(), row->algorithm.c_str(), row->alpha * 1e6,
                   row->beta > 0 ? line("%.4g", row->beta * 1e9).c_str() : "-", row->error * 100);
      if (large == nullptr || small == large) break;
    }
  }
  return text;
}

}  // namespace moeccl::perf

// Reads a profile's file, and prints for each group the algorithms with the least alpha and beta,
// and what links carry.
#include "perf/fit/table.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
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

// What pairs of ranks have shown on one kind of link.
struct Link {
  double latency = 0;  // the least time of an exchange; 0: not measured
  double rate = 0;     // bytes that a rank gets in a second, at the largest size

  void add(const json& curve) {
    for (const json& sample : curve.at("samples")) {
      const double seconds = sample.at("seconds");
      latency = latency > 0 ? std::min(latency, seconds) : seconds;
    }
    const json& last = curve.at("samples").back();
    // One half of a send buffer goes to the other rank.
    rate = std::max(rate, last.at("bytes").get<double>() / 2 / last.at("seconds").get<double>());
  }
};

// By groups' names.
using Links = std::map<std::string, Link>;
const std::string kInNode = "1x2", kBetween = "2x1", kAlone = ", alone";

Links linksOf(const json& profile) {
  Links links;
  for (const json& curve : profile.at("curves"))
    if (curve.at("collective") == "alltoall") links[curve.at("where")].add(curve);
  return links;
}

// 0: not measured.
double latencyOf(const Links& links, const std::string& pair) {
  double least = 0;
  for (const std::string& where : {pair, pair + kAlone})
    if (const auto link = links.find(where); link != links.end())
      least = least > 0 ? std::min(least, link->second.latency) : link->second.latency;
  return least;
}

// "2x4", "1x4+1x3", "mp2,ep4,esp2 on 2x4"; "1@0+2@1": ranks @ node.
bool crossesNodes(const std::string& where) {
  const std::size_t grid = where.find(" on ");
  const std::string nodes = grid == std::string::npos ? where : where.substr(grid + 4);
  return !nodes.starts_with("1x") || nodes.find('+') != std::string::npos;
}

std::string textOf(const Links& links, const std::vector<int>& ranksPerNode) {
  std::string inNode = "not measured inside a node", between = "not measured between nodes";
  if (const double latency = latencyOf(links, kInNode); latency > 0) {
    const auto alone = links.find(kInNode + kAlone);
    const double rate = (alone != links.end() ? alone : links.find(kInNode))->second.rate;
    inNode = line("%.3g us and %.3g GB/s for a rank inside a node", latency * 1e6, rate * 1e-9);
  }
  if (const double latency = latencyOf(links, kBetween); latency > 0) {
    const auto together = links.find(kBetween);
    const double rate =
        together == links.end()
            ? links.at(kBetween + kAlone).rate
            : together->second.rate * std::min(ranksPerNode.at(0), ranksPerNode.at(1));
    between =
        line("%.3g us between nodes, whose uplink carries %.3g MB/s", latency * 1e6, rate * 1e-6);
  }
  return "Links: " + inNode + "; " + between + "\n";
}

}  // namespace

std::string tableOf(const std::string& profileFile) {
  std::ifstream file(profileFile);
  const json profile = json::parse(file);
  using Group = std::pair<std::string, std::string>;
  std::vector<Group> order;
  std::map<Group, std::vector<Row>> groups;
  const Links links = linksOf(profile);
  for (const json& curve : profile.at("curves")) {
    const Group group{curve.at("collective"), curve.at("where")};
    if (group.second.ends_with(kAlone)) continue;
    if (groups[group].empty()) order.push_back(group);
    groups[group].push_back(rowOf(curve));
  }
  std::string text;
  if (const auto doubts = profile.find("doubts"); doubts != profile.end()) {
    text += "The profile may be wrong, as it was written by --force:\n";
    for (const json& doubt : *doubts) text += "  " + doubt.get<std::string>() + "\n";
  }
  if (profile.contains("links"))
    text += textOf(links, profile.at("fingerprint").at("ranksPerNode"));
  if (order.empty()) return text;
  text +=
      "A call takes alpha + beta x bytes of a rank's send buffer; of each group the algorithms "
      "with the least of both (\"-\": samples do not tell):\n";
  text += line("%-17s %-24s %-22s %10s %10s %7s\n", "collective", "group", "algorithm", "alpha us",
               "beta ns/B", "error");
  for (const Group& group : order) {
    const std::vector<Row>& rows = groups[group];
    // A line through noise may begin at 0: no call takes less than half of what a pair takes.
    const double least = latencyOf(links, crossesNodes(group.second) ? kBetween : kInNode) / 2;
    const auto tells = [least](double alpha) { return alpha > 0 && alpha >= least; };
    const Row* small = nullptr;
    const Row* large = nullptr;
    for (const Row& row : rows) {
      if (tells(row.alpha) && (small == nullptr || row.alpha < small->alpha)) small = &row;
      if (row.beta > 0 && (large == nullptr || row.beta < large->beta)) large = &row;
    }
    if (small == nullptr) small = large != nullptr ? large : &rows[0];
    for (const Row* row : {small, large}) {
      text += line("%-17s %-24s %-22s %10s %10s %5.0f %%\n", group.first.c_str(),
                   group.second.c_str(), row->algorithm.c_str(),
                   tells(row->alpha) ? line("%.1f", row->alpha * 1e6).c_str() : "-",
                   row->beta > 0 ? line("%.4g", row->beta * 1e9).c_str() : "-", row->error * 100);
      if (large == nullptr || small == large) break;
    }
  }
  return text;
}

}  // namespace moeccl::perf

// Prints plans: as text with a line for each op, or as a Graphviz digraph with a cluster for each
// node and each rank.
#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>
#include <tuple>
#include <vector>

#include "algorithms/plan.h"

namespace moeccl {
namespace {

constexpr const char* kBuffers[] = {"in", "out", "scratch"};
constexpr const char* kKinds[] = {"send", "recv", "copy", "reduce"};

// in[3], out[0..7], scratch[1..9:4], in[0]x3
void printRun(std::ostream& out, const Blocks& run) {
  out << kBuffers[static_cast<int>(run.buffer)] << '[' << run.first;
  if (run.count > 1 && run.stride == 0) {
    out << "]x" << run.count;
    return;
  }
  if (run.count > 1) out << ".." << run[run.count - 1];
  if (run.count > 1 && run.stride != 1) out << ':' << run.stride;
  out << ']';
}

void printBlocks(std::ostream& out, std::span<const Blocks> runs) {
  const char* separator = "";
  for (const Blocks& run : runs) {
    out << separator;
    printRun(out, run);
    separator = " ";
  }
}

void printOp(std::ostream& out, const Plan& plan, const Op& op) {
  out << kKinds[static_cast<int>(op.kind)] << ' ';
  printBlocks(out, plan.src(op));
  if (op.kind == OpKind::send) out << " to rank " << op.peer;
  if (op.kind == OpKind::copy || op.kind == OpKind::reduce) out << " -> ";
  printBlocks(out, plan.dst(op));
  if (op.kind == OpKind::recv) out << " from rank " << op.peer;
}

// One rank's ops, with an edge for each dependency.
void printCluster(std::ostream& out, const Plan& plan, int rank) {
  out << "  subgraph cluster_r" << rank << " {\n    label=\"rank " << rank << "\";\n";
  for (size_t i = 0; i < plan.ops.size(); ++i)
    out << "    r" << rank << "_" << i << " [label=\"" << i << ": "
        << describe(plan, static_cast<int>(i)) << "\"];\n";
  for (size_t i = 0; i < plan.ops.size(); ++i)
    for (OpRange dep : plan.deps(plan.ops[i]))
      for (int d = dep.first; d < dep.first + dep.count; ++d)
        out << "    r" << rank << "_" << d << " -> r" << rank << "_" << i << ";\n";
  out << "  }\n";
}

// Colours that nearly everybody can tell apart.
constexpr const char* kBetween = "color=\"#d55e00\", penwidth=2";
constexpr const char* kInNode = "color=\"#0072b2\"";

// An edge for each message: the n-th send of a pair on a lane meets the n-th receive.
void printMessages(std::ostream& out, std::span<const Plan> plans, const Topology& topology) {
  using Pair = std::tuple<int, int, int>;  // from, to, lane
  std::map<Pair, std::vector<size_t>> sends, receives;
  for (size_t rank = 0; rank < plans.size(); ++rank)
    for (size_t i = 0; i < plans[rank].ops.size(); ++i) {
      const Op& op = plans[rank].ops[i];
      const int self = static_cast<int>(rank);
      if (op.kind == OpKind::send) sends[{self, op.peer, op.lane}].push_back(i);
      if (op.kind == OpKind::recv) receives[{op.peer, self, op.lane}].push_back(i);
    }
  for (const auto& [pair, from] : sends) {
    const std::vector<size_t>& to = receives[pair];
    const auto [sender, receiver, lane] = pair;
    const bool between = topology.nodeOf(sender) != topology.nodeOf(receiver);
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
      out << "  r" << sender << "_" << from[i] << " -> r" << receiver << "_" << to[i]
          << " [style=dashed, " << (between ? kBetween : kInNode) << "];\n";
  }
}

}  // namespace

std::string describe(const Blocks& blocks) {
  std::ostringstream out;
  printRun(out, blocks);
  return out.str();
}

std::string describe(const Plan& plan, int op) {
  std::ostringstream out;
  printOp(out, plan, plan.ops[op]);
  return out.str();
}

void printText(std::ostream& out, const Plan& plan, int rank) {
  out << "rank " << rank << ": " << plan.ops.size() << " ops, " << plan.lanes << " lane"
      << (plan.lanes == 1 ? "" : "s") << ", " << plan.scratch.size() << " scratch blocks\n";
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    out << "  " << i << " [lane " << op.lane << " step " << op.step << "] ";
    printOp(out, plan, op);
    const char* separator = " after ";
    for (OpRange dep : plan.deps(op)) {
      out << separator << dep.first;
      if (dep.count > 1) out << ".." << dep.first + dep.count - 1;
      separator = ", ";
    }
    out << '\n';
  }
}

void printDot(std::ostream& out, std::span<const Plan> plans, const Topology& topology,
              const std::string& title, int only) {
  out << "digraph plan {\n  rankdir=LR; node [shape=box, fontsize=10];\n"
      << "  labelloc=t; label=\"" << title
      << "\\nblack: waits for; blue, dashed: a message in a node; orange, dashed: between "
         "nodes\";\n";
  for (int node = 0; node < topology.nodes(); ++node) {
    if (only >= 0 && topology.nodeOf(only) != node) continue;
    out << "  subgraph cluster_n" << node << " {\n  label=\"node " << node
        << "\"; style=rounded;\n";
    for (const int rank : topology.ranksOn(node))
      if (only < 0 || rank == only) printCluster(out, plans[static_cast<std::size_t>(rank)], rank);
    out << "  }\n";
  }
  if (only < 0) printMessages(out, plans, topology);
  out << "}\n";
}

}  // namespace moeccl

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
  out << "  subgraph cluster_" << rank << " {\n    label=\"rank " << rank << "\";\n";
  for (size_t i = 0; i < plan.ops.size(); ++i)
    out << "    r" << rank << "_" << i << " [label=\"" << i << ": "
        << describe(plan, static_cast<int>(i)) << "\"];\n";
  for (size_t i = 0; i < plan.ops.size(); ++i)
    for (OpRange dep : plan.deps(plan.ops[i]))
      for (int d = dep.first; d < dep.first + dep.count; ++d)
        out << "    r" << rank << "_" << d << " -> r" << rank << "_" << i << ";\n";
  out << "  }\n";
}

// An edge for each message: the n-th send of a pair on a lane meets the n-th receive.
void printMessages(std::ostream& out, std::span<const Plan> plans) {
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
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
      out << "  r" << std::get<0>(pair) << "_" << from[i] << " -> r" << std::get<1>(pair) << "_"
          << to[i] << " [style=dashed];\n";
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

void printDot(std::ostream& out, std::span<const Plan> plans, int only) {
  out << "digraph plan {\n  rankdir=LR; node [shape=box, fontsize=10];\n";
  const auto drawn = [&](int rank) { return only < 0 || rank == only; };
  for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank)
    if (drawn(rank)) printCluster(out, plans[static_cast<std::size_t>(rank)], rank);
  if (only < 0) printMessages(out, plans);
  out << "}\n";
}

}  // namespace moeccl

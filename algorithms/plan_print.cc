#include <ostream>
#include <sstream>

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

void printDot(std::ostream& out, std::span<const Plan> plans) {
  out << "digraph plan {\n  rankdir=LR; node [shape=box, fontsize=10];\n";
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const Plan& plan = plans[rank];
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
  // The n-th send of a pair on a lane meets the n-th receive.
  for (size_t from = 0; from < plans.size(); ++from)
    for (size_t to = 0; to < plans.size(); ++to)
      for (int lane = 0; lane < plans[from].lanes; ++lane) {
        size_t r = 0;
        for (size_t s = 0; s < plans[from].ops.size(); ++s) {
          const Op& send = plans[from].ops[s];
          if (send.kind != OpKind::send || send.peer != static_cast<int>(to) || send.lane != lane)
            continue;
          const auto meets = [&](const Op& op) {
            return op.kind == OpKind::recv && op.peer == static_cast<int>(from) && op.lane == lane;
          };
          while (r < plans[to].ops.size() && !meets(plans[to].ops[r])) ++r;
          if (r == plans[to].ops.size()) break;
          out << "  r" << from << "_" << s << " -> r" << to << "_" << r++ << " [style=dashed];\n";
        }
      }
  out << "}\n";
}

}  // namespace moeccl

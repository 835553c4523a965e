// Prints a schedule phase by phase, as text or as a graph for dot.
#include <algorithm>
#include <array>
#include <ostream>
#include <sstream>

#include "algorithms/schedules/kinds.h"

namespace moeccl::schedules {
namespace {

constexpr std::array<const char*, kDims> kDimNames = {
    "N_MP",      "N_EP", "N_ESP",  "P",       "E_local", "tokens", "part", "chunk",
    "chunk",     "T",    "T/N_MP", "T/chunk", "rows",    "rows",   "rows", "rows",
    "kept rows", "M",    "k",      "sums",    "gate",    "branch"};
constexpr std::array<const char*, kGroupKinds> kGroupNames = {"all ranks", "MP", "EP", "ESP"};
constexpr std::array<const char*, 3> kStateNames = {"", "replicated", "partial sums"};

std::string tableName(const Schedule& schedule, int index) {
  const Table& table = schedule.tables[static_cast<std::size_t>(index)];
  if (schedule.chunks == 1) return table.name;
  if (table.element == Element::count64 || std::ranges::any_of(table.shape, ofChunk))
    return table.name + " " + std::to_string(table.chunk);
  return table.name;
}

void list(std::ostream& out, const Schedule& schedule, const std::vector<int>& tables) {
  const char* separator = "";
  for (const int table : tables) {
    out << separator << tableName(schedule, table);
    separator = ", ";
  }
}

// " (ESP partial sums)"
std::string held(const Table& table) {
  std::string text;
  for (const auto group : {GroupKind::mp, GroupKind::ep, GroupKind::esp})
    if (const State state = table.held.of(group); state != State::split)
      text += std::string(text.empty() ? " (" : ", ") +
              kGroupNames[static_cast<std::size_t>(group)] + " " +
              kStateNames[static_cast<std::size_t>(state)];
  return text.empty() ? text : text + ")";
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"') made += '\\';
    made += c;
  }
  return made + '"';
}

}  // namespace

std::string describe(const Shape& shape) {
  std::string text;
  for (const Dim dim : shape)
    text += std::string("[") + kDimNames[static_cast<std::size_t>(dim)] + "]";
  return text;
}

std::string describe(const Schedule& schedule, int phase) {
  const Phase& it = schedule.phases[static_cast<std::size_t>(phase)];
  std::ostringstream out;
  out << signatureOf(it.kind).name;
  if (it.backward) out << " backward";
  if (it.kind == Kind::exchange)
    out << " \"" << it.name << "\", " << moeccl::nameOf(carrier(schedule, it)) << " of "
        << kGroupNames[static_cast<std::size_t>(it.group)];
  if (it.kind == Kind::split) {
    const Shape& made = schedule.tables[static_cast<std::size_t>(it.writes[0])].shape;
    const bool inChunks = it.group == GroupKind::mp && made.front() == Dim::batchChunkTokens;
    out << (inChunks ? " in chunks" : " over ");
    if (!inChunks) out << kGroupNames[static_cast<std::size_t>(it.group)];
  }
  if (it.routed) out << " \"" << it.name << "\" of all ranks";
  if (it.oneByOne) out << ", one by one";
  out << ": ";
  list(out, schedule, it.reads);
  out << " -> ";
  list(out, schedule, it.writes);
  return out.str();
}

void printText(std::ostream& out, const Schedule& schedule) {
  out << "schedule " << schedule.name
      << (schedule.pass == Pass::forward ? ", forward" : ", backward")
      << (schedule.dropless ? ", dropless" : "") << ": " << schedule.phases.size() << " phases, "
      << schedule.streams << " stream" << (schedule.streams == 1 ? "" : "s");
  if (schedule.chunks > 1) out << ", " << schedule.chunks << " chunks";
  out << "\n";
  for (std::size_t i = 0; i < schedule.tables.size(); ++i) {
    const Table& table = schedule.tables[i];
    constexpr std::array<const char*, 4> kRoles = {"", " given", " kept from forward", " weights"};
    out << "  " << tableName(schedule, static_cast<int>(i)) << " " << describe(table.shape)
        << held(table) << kRoles[static_cast<std::size_t>(table.role)] << "\n";
  }
  for (std::size_t i = 0; i < schedule.phases.size(); ++i) {
    const Phase& phase = schedule.phases[i];
    out << "  " << i << " [stream " << phase.stream << "] "
        << describe(schedule, static_cast<int>(i));
    const char* separator = " after ";
    for (const int other : phase.after) {
      out << separator << other;
      separator = ", ";
    }
    out << "\n";
  }
}

void printDot(std::ostream& out, const Schedule& schedule) {
  out << "digraph schedule {\n  node [shape=box, fontsize=10]; edge [fontsize=9];\n"
      << "  labelloc=t; label=\"" << schedule.name
      << (schedule.pass == Pass::forward ? ", forward" : ", backward")
      << "\\nblue: ranks exchange something; an edge is a table\";\n";
  for (int stream = 0; stream < schedule.streams; ++stream) {
    out << "  subgraph cluster_" << stream << " {\n    label=\"stream " << stream << "\";\n";
    for (std::size_t i = 0; i < schedule.phases.size(); ++i) {
      const Phase& phase = schedule.phases[i];
      if (phase.stream != stream) continue;
      const std::string label =
          std::to_string(i) + ": " + phase.name + (phase.backward ? ", backward" : "");
      out << "    p" << i << " [label=" << quoted(label)
          << (communicates(phase) ? ", style=filled, fillcolor=lightblue" : "") << "];\n";
    }
    out << "  }\n";
  }
  // From whoever writes a table to whoever reads it.
  for (std::size_t i = 0; i < schedule.phases.size(); ++i)
    for (const int table : schedule.phases[i].writes)
      for (std::size_t j = i + 1; j < schedule.phases.size(); ++j)
        for (const int read : schedule.phases[j].reads)
          if (read == table)
            out << "  p" << i << " -> p" << j << " [label="
                << quoted(tableName(schedule, table) + "\\n" +
                          describe(schedule.tables[static_cast<std::size_t>(table)].shape))
                << "];\n";
  out << "}\n";
}

}  // namespace moeccl::schedules

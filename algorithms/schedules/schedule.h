// A schedule is one pass of a Mixture-of-Experts layer as a value: which exchanges and which
// computations, on which tables, in which order, and what waits for what. It names tables, never
// pointers, elements, or how anything is computed or sent. So the same value is verified, priced,
// printed and mirrored.
//
// Order. All ranks have the same schedule. A phase begins once those in its `after` and the earlier
// phases of its stream have ended; nothing else orders phases of different streams. Stream 0 is the
// pass's own and does all computation; the others hold exchanges that go on beside it. Ranks start
// exchanges in the order of the list, so the ranks of a group start the same ones in the same
// order.
//
// Tables. A table is written by one phase, but for sums (Table::sum): phases add to those one after
// another, and the first one sets them. Whoever reads a table comes after all who write it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/collective.h"

namespace moeccl {

enum class GroupKind : std::uint8_t { world, mp, ep, esp };
inline constexpr int kGroupKinds = 4;

enum class Pass : std::uint8_t { forward, backward };

namespace schedules {

// Sizes that a layer and its grid bring. A batch is the tokens of one MP group; a part is one
// rank's share of them, padded. A chunk is one of as many equal pieces as the schedule has chunks,
// of a part, or, where no phase splits the batch, of the batch, padded as well.
enum class Dim : std::uint8_t {
  mp,
  ep,
  esp,
  ranks,         // ep * esp
  localExperts,  // of an EP rank
  tokens,        // of a batch, without padding
  partTokens,
  chunkTokens,       // of a part
  batchChunkTokens,  // of a batch
  capacity,          // places per expert of a batch
  slots,             // the same of a part
  chunkSlots,
  batchRows,  // of one expert: the choices of a batch that chose it, all of them
  partRows,   // of one expert: the same of a part
  chunkRows,  // of one expert: the same of a chunk of a part
  batchChunkRows,
  keptRows,  // the choices that have a place with one of the rank's own experts, by expert
  embedding,
  choices,          // that a token has room for
  sums,             // what a gate sums up over a part
  gateWeights,      // elements of the gate's matrices
  residualWeights,  // elements of the residual branch
};
inline constexpr int kDims = static_cast<int>(Dim::residualWeights) + 1;

// Rows whose number only an exchange of counts tells. They are bound late, as extents bind blocks.
constexpr bool boundLate(Dim dim) {
  return dim == Dim::batchRows || dim == Dim::partRows || dim == Dim::chunkRows ||
         dim == Dim::batchChunkRows;
}
// Those of chunks.
constexpr bool ofChunk(Dim dim) {
  return dim == Dim::chunkTokens || dim == Dim::batchChunkTokens || dim == Dim::chunkSlots ||
         dim == Dim::chunkRows || dim == Dim::batchChunkRows;
}
// Of ranks and experts.
constexpr bool isIndex(Dim dim) {
  return dim == Dim::mp || dim == Dim::ep || dim == Dim::esp || dim == Dim::ranks ||
         dim == Dim::localExperts;
}
// Tokens of any kind.
constexpr bool isTokens(Dim dim) {
  return dim == Dim::tokens || dim == Dim::partTokens || dim == Dim::chunkTokens ||
         dim == Dim::batchChunkTokens;
}

using Shape = std::vector<Dim>;

inline bool has(const Shape& shape, Dim dim) { return std::ranges::count(shape, dim) > 0; }

// What the ranks of a group hold: each something else, all the same, or summands of the same.
enum class State : std::uint8_t { split, replicated, partial };
struct Held {
  State mp = State::split, ep = State::split, esp = State::split;

  State& of(GroupKind group) {
    return group == GroupKind::mp ? mp : group == GroupKind::ep ? ep : esp;
  }
  State of(GroupKind group) const { return const_cast<Held*>(this)->of(group); }
  bool operator==(const Held&) const = default;
};

enum class Element : std::uint8_t { layer, real64, count64 };  // layer: the layer's datatype

enum class Role : std::uint8_t {
  made,     // by a phase
  given,    // the pass's tokens, or the gradient of its output
  kept,     // from the forward pass, where the table of this name and chunk has been made or given
  weights,  // that all ranks of an MP group have
};

struct Table {
  std::string name;  // with `chunk` unique among the tables of a pass
  Shape shape;
  Held held = {};
  Element element = Element::layer;
  Role role = Role::made;
  bool sum = false;
  int chunk = 0;

  bool operator==(const Table&) const = default;
};

inline bool has(const Table& table, Dim dim) { return has(table.shape, dim); }
// Whether it has runs of rows that are bound late.
inline bool hasRuns(const Table& table) { return std::ranges::any_of(table.shape, boundLate); }
inline bool isOfWeights(const Table& table) {
  return table.shape == Shape{Dim::gateWeights} || table.shape == Shape{Dim::residualWeights};
}

enum class Kind : std::uint8_t {
  exchange,  // a collective of a group
  split,     // what all ranks of a group have -> the rank's own part of it, or a batch -> a chunk
  join,      // parts [mp][part] -> their batch; or the own part, or a chunk of the batch -> a batch
             // that is zero elsewhere
  gate,      // tokens -> routing, what the gate sums up, and (dropless) each expert's rows
  route,     // routing -> each expert's rows, as all ranks tell each other what tokens chose
  permute,   // tokens, routing -> rows of experts
  regroup,   // the same rows in another order
  experts,   // rows -> rows, each expert's its own through the rank's shard of it
  combine,   // rows, routing -> tokens, weighted and added up
  residual,  // tokens -> tokens, through the residual branch
  add,       // tokens, those of the table's chunk -> added to a sum
};
inline constexpr int kKinds = static_cast<int>(Kind::add) + 1;

// algorithms/schedules/kinds.h has the tables of each kind, forward and backward.
struct Phase {
  Kind kind;
  std::string name;  // as in errors and prices: "EP-AlltoAll of the counts"
  // Tables. An exchange fills writes[i] from reads[i]. Whatever deals with rows that are bound late
  // reads the counts that bind them last.
  std::vector<int> reads = {}, writes = {};
  bool backward = false;
  Collective collective = {};          // of exchanges
  GroupKind group = GroupKind::world;  // of exchanges, splits and joins
  int stream = 0;
  std::vector<int> after = {};  // earlier phases
  // Permutes and combines, forward and backward: token routing takes the rows to the experts' own
  // ranks, and back. So it is an exchange of all ranks, too; shards are added on the way back.
  bool routed = false;
  // One expert after another, in step with the neighbours that say so too: no more than an expert's
  // rows are there at a time.
  bool oneByOne = false;
  // Experts: each row comes once from each rank of an MP group; weights get the gradient of one of
  // them.
  bool copies = false;

  bool operator==(const Phase&) const = default;
};

// Whether ranks exchange something in it.
bool communicates(const Phase& phase);

// What a layer must have so that the schedule applies.
struct Needs {
  bool wholeGroups = false;  // a part is whole capacity groups
  bool expertsInMp = false;  // an MP group holds all experts

  bool operator==(const Needs&) const = default;
};

struct Schedule {
  std::string name;
  Pass pass = Pass::forward;
  std::vector<Table> tables;
  std::vector<Phase> phases;
  int streams = 1;
  int chunks = 1;
  bool dropless = false;
  Needs needs = {};
  int input = -1, output = -1;  // tables [tokens][embedding]

  bool operator==(const Schedule&) const = default;
};

// Elements of a table, where size(dim) is the size of a dimension.
template <typename Size>
auto elements(const Shape& shape, Size size) {
  decltype(size(Dim::mp)) product = 1;
  for (const Dim dim : shape) product *= size(dim);
  return product;
}

// Which collective carries an exchange: where rows are bound late, and ranks have different numbers
// of them, an all-to-all-v does.
Collective carrier(const Schedule& schedule, const Phase& exchange);
// How phases are named where nobody says otherwise: "MP-AllGather", "dispatch".
std::string nameOf(Collective collective, GroupKind group);

// Builds a schedule phase by phase; functions return the table that is made. build() adds what
// follows from the phases: how many streams there are, and what each phase waits for beyond the
// order of its stream, which is whoever writes what it reads, and who has added to what it adds to.
// A table that there is not is std::invalid_argument.
class Builder {
 public:
  Builder(std::string name, Pass pass);
  // An empty one that is like `schedule` in all but tables and phases.
  explicit Builder(const Schedule& schedule);

  int table(Table table);
  // The pass's input [tokens][embedding], the same on all ranks of the MP group.
  int input(std::string name = "input");
  int weights(std::string name, Shape shape);
  int kept(const Table& table);

  // Any phase.
  void add(Phase phase) { schedule_.phases.push_back(std::move(phase)); }
  // The phase, and the table that it writes.
  int make(Phase phase, Table table);

  int exchange(Collective collective, GroupKind group, int table, std::string made,
               std::string name = "");
  int split(GroupKind group, int table, std::string made);
  // [mp][part] -> [tokens], the same on all ranks of the MP group.
  int join(int table, std::string made);
  struct Gated {
    int routing, sums;
  };
  Gated gate(int tokens, int weights);
  int permute(int tokens, int routing, Shape rows, std::string made);
  int regroup(int table, Shape shape, std::string made);
  int experts(int rows, std::string made);
  int combine(int rows, int routing, std::string made);
  // What ranks tell each other so that the two below can follow; returns the counts.
  int route(int routing);
  int dispatchRouted(int tokens, int routing, int counts, Dim rows, std::string made);
  int combineRouted(int rows, int routing, int counts, std::string made);

  void output(int table) { schedule_.output = table; }
  Schedule& schedule() { return schedule_; }
  Table& at(int table);
  Phase& last() { return schedule_.phases.back(); }
  Schedule build();

 private:
  Schedule schedule_;
};

// For each phase those that have ended before it begins.
std::vector<std::vector<bool>> earlier(const Schedule& schedule);

// For people: "[tokens][embedding]", and a line per phase.
std::string describe(const Shape& shape);
std::string describe(const Schedule& schedule, int phase);
void printText(std::ostream& out, const Schedule& schedule);
// As a Graphviz digraph: a box per phase, an edge per table, and a cluster per stream.
void printDot(std::ostream& out, const Schedule& schedule);

}  // namespace schedules
}  // namespace moeccl

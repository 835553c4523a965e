// The table of what each kind of phase reads and writes.
#include "algorithms/schedules/kinds.h"

#include <array>

namespace moeccl::schedules {
namespace {

bool isRows(Dim dim) {
  return dim == Dim::capacity || dim == Dim::slots || dim == Dim::chunkSlots || boundLate(dim) ||
         dim == Dim::keptRows;
}

}  // namespace

Shape behindIndices(const Shape& shape) {
  Shape dims;
  for (const Dim dim : shape)
    if (!isIndex(dim)) dims.push_back(dim);
  return dims;
}

Holds holdsOf(const Table& table) {
  const Shape dims = behindIndices(table.shape);
  if (table.element == Element::count64) return dims.empty() ? Holds::counts : Holds::any;
  if (table.element == Element::real64)
    return table.shape == Shape{Dim::sums} ? Holds::sums : Holds::any;
  if (table.shape == Shape{Dim::gateWeights}) return Holds::gateWeights;
  if (table.shape == Shape{Dim::residualWeights}) return Holds::residualWeights;
  if (dims.size() != 2) return Holds::any;
  if (isTokens(dims[0]) && dims[1] == Dim::choices) return Holds::routing;
  if (dims[1] != Dim::embedding) return Holds::any;
  return isTokens(dims[0]) ? Holds::tokens : isRows(dims[0]) ? Holds::rows : Holds::any;
}

const Signature& signatureOf(Kind kind) {
  using enum Holds;
  using Operands = std::vector<Signature::Operand>;
  const auto read = [](std::size_t index) { return Signature::Operand{false, index}; };
  const auto written = [](std::size_t index) { return Signature::Operand{true, index}; };
  // In the order of Kind.
  static const std::array<Signature, kKinds> kSignatures = {{
      {.name = "exchange", .reads = {any}, .writes = {any}},
      {.name = "split", .reads = {any}, .writes = {any}},
      {.name = "join", .reads = {any}, .writes = {any}},
      {.name = "gate",
       .reads = {tokens, gateWeights},
       .writes = {routing, sums, counts},
       .optional = 1,
       .kept = Operands{written(0), read(1)},
       .gradients = {0, 1},
       .weights = Weights::gate},
      {.name = "route", .reads = {routing}, .writes = {counts}},
      {.name = "permute",
       .reads = {tokens, routing},
       .writes = {rows},
       .kept = Operands{read(1)},
       .gradients = {0},
       .moves = Moves::written,
       .movesBackward = Moves::gathered},
      {.name = "regroup", .reads = {any}, .writes = {any}, .moves = Moves::written},
      {.name = "experts",
       .reads = {rows},
       .writes = {rows},
       .kept = Operands{read(0)},
       .gradients = {0},
       .weights = Weights::experts},
      {.name = "combine",
       .reads = {rows, routing},
       .writes = {tokens},
       .kept = Operands{read(0), read(1)},
       .gradients = {0, 1},
       .moves = Moves::gathered,
       .movesBackward = Moves::written},
      {.name = "residual",
       .reads = {tokens, residualWeights},
       .writes = {tokens},
       .kept = Operands{read(0), read(1)},
       .gradients = {0, 1},
       .moves = Moves::written,
       .movesBackward = Moves::written,
       .weights = Weights::residual},
      {.name = "add", .reads = {tokens}, .writes = {tokens}},
  }};
  return kSignatures[static_cast<std::size_t>(kind)];
}

std::vector<Holds> Signature::backwardReads() const {
  std::vector<Holds> all = {writes[0]};
  for (const Operand& it : kept) all.push_back((it.written ? writes : reads)[it.index]);
  return all;
}

std::vector<Holds> Signature::backwardWrites() const {
  std::vector<Holds> all;
  for (const std::size_t read : gradients) all.push_back(reads[read]);
  return all;
}

}  // namespace moeccl::schedules

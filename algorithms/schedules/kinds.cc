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
      {"exchange", {any}, {any}},
      {"split", {any}, {any}},
      {"join", {any}, {any}},
      {"gate",
       {tokens, gateWeights},
       {routing, sums, counts},
       1,
       Operands{written(0), read(1)},
       {0, 1}},
      {"route", {routing}, {counts}},
      {"permute", {tokens, routing}, {rows}, 0, Operands{read(1)}, {0}},
      {"regroup", {any}, {any}},
      {"experts", {rows}, {rows}, 0, Operands{read(0)}, {0}},
      {"combine", {rows, routing}, {tokens}, 0, Operands{read(0), read(1)}, {0, 1}},
      {"residual", {tokens, residualWeights}, {tokens}, 0, Operands{read(0), read(1)}, {0, 1}},
      {"add", {tokens}, {tokens}},
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

#include "algorithms/schedules/kinds.h"

#include <array>

namespace moeccl::schedules {

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

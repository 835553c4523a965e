// What a phase of each kind reads, writes and works on, forward and backward: a row of one table.
// The printer takes the name from it, the verifier the tables that a phase may have, mirrored() the
// backward phase, and prices the work. What a table holds follows from the table alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

// What a table holds, by its dimensions behind those of ranks and experts.
enum class Holds : std::uint8_t {
  any,              // an exchange, a split, a join or a regroup takes every table
  tokens,           // [tokens][embedding]
  routing,          // [tokens][choices]
  rows,             // [rows][embedding]
  sums,             // [sums], float64
  counts,           // of rows, one for each run
  gateWeights,      // [gateWeights]
  residualWeights,  // [residualWeights]
};

// `any`: nothing of the above.
Holds holdsOf(const Table& table);
// A shape's dimensions but those of ranks and experts.
Shape behindIndices(const Shape& shape);
// Whether rows are only some of those of the tokens; other ranks of the MP group have the rest.
// Whatever adds up such rows by their tokens makes summands.
inline bool areSomeOf(const Table& rows, const Table& tokens) {
  return rows.held.mp != tokens.held.mp;
}

// The elements that a phase brings from one place to another.
enum class Moves : std::uint8_t {
  none,      // or not worth counting
  written,   // all that it writes
  gathered,  // what all choices have, which it adds up by token
};
// The weights that a phase multiplies tokens or rows by.
enum class Weights : std::uint8_t { none, gate, experts, residual };

// Tables of one phase that hold the same have one shape. Tokens and routing are of the same tokens.
// Counts that bind rows are read behind `reads`, and are not listed.
struct Signature {
  std::string_view name;
  std::vector<Holds> reads, writes;
  int optional = 0;  // how many of the last writes may be missing
  // A table of the forward phase.
  struct Operand {
    bool written;
    std::size_t index;
  };
  // A backward phase reads the gradient of writes[0], and then these tables of the forward pass.
  std::vector<Operand> kept = {};
  // A backward phase writes the gradients of these reads, or adds to them. Empty: the kind has no
  // backward phase.
  std::vector<std::size_t> gradients = {};
  Moves moves = Moves::none, movesBackward = Moves::none;
  Weights weights = Weights::none;

  // The tables of a backward phase.
  std::vector<Holds> backwardReads() const;
  std::vector<Holds> backwardWrites() const;
};

const Signature& signatureOf(Kind kind);

}  // namespace moeccl::schedules

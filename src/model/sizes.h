// The numbers that a layer and its grid bring to a schedule.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "algorithms/schedules/schedule.h"

namespace moeccl {

// The product of sizes, none negative. Throws Error (InvalidArgument) when so many elements, of up
// to 8 bytes, exceed the address space.
std::int64_t elementCount(std::initializer_list<std::int64_t> sizes);

namespace schedules {

struct Sizes {
  // By Dim. keptRows: the most there can be of all the rank's own experts together, 0 where nothing
  // bounds them.
  std::array<std::int64_t, kDims> of{};

  std::int64_t at(Dim dim) const { return of[static_cast<std::size_t>(dim)]; }
  std::int64_t& at(Dim dim) { return of[static_cast<std::size_t>(dim)]; }
  // Throws as elementCount.
  std::int64_t elements(std::span<const Dim> shape) const;
  // The three below are about a table of tokens, on a rank whose place in its MP group is `part`.
  // How many there are, with padding:
  std::int64_t paddedTokens(const Table& table) const;
  // Where they begin in the batch; behind its last token when they are nothing but padding.
  std::int64_t firstToken(const Table& table, std::int64_t part) const;
  // Without padding.
  std::int64_t tokensOf(const Table& table, std::int64_t part) const {
    return std::min(paddedTokens(table), at(Dim::tokens) - firstToken(table, part));
  }
};

}  // namespace schedules
}  // namespace moeccl

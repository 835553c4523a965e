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
  // Of a chunk, or of a part that is one, in the batch; behind the last token when it is nothing
  // but padding.
  std::int64_t firstToken(std::int64_t part, std::int64_t chunk) const {
    return std::min(at(Dim::tokens), part * at(Dim::partTokens) + chunk * at(Dim::chunkTokens));
  }
  // How many of the rank's part, or chunk of it, are tokens and no padding.
  std::int64_t tokensOf(std::int64_t part, std::int64_t chunk, std::int64_t padded) const {
    return std::min(padded, at(Dim::tokens) - firstToken(part, chunk));
  }
};

}  // namespace schedules
}  // namespace moeccl

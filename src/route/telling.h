// How ranks tell each other the rows of a routing: in as many bytes as that takes, after they have
// told each other how many, or at once in as many as it can take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/routes/route.h"

namespace moeccl {

class Telling {
 public:
  // `most`: entries that one source can have for one rank; 0: the receiver knows how many there
  // are.
  Telling(int chunks, bool weighted, int experts, std::int32_t most)
      : chunks_(chunks), weighted_(weighted), experts_(experts), most_(most) {}

  bool bounded() const { return most_ > 0; }
  // Of a list of so many sources with so many entries, where that is known.
  std::size_t bytes(int sources, std::int32_t entries) const;
  std::vector<std::byte> packed(const routes::RowList& list) const;
  routes::RowList read(const std::vector<std::byte>& bytes, int sources,
                       std::int32_t entries) const;

 private:
  std::size_t mostBytes(int sources) const {
    return routes::packedBytes(chunks_, sources, std::int64_t{most_} * sources, weighted_);
  }

  int chunks_;
  bool weighted_;
  int experts_;
  std::int32_t most_;
};

}  // namespace moeccl

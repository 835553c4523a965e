// Where blocks lie in a buffer, and how large they are: the only place where sizes live. A plan
// serves every size; alltoall and alltoallv differ in their extents alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moeccl {

struct Extent {
  std::size_t offset;  // bytes from the start of the buffer
  std::size_t bytes;

  std::size_t end() const { return offset + bytes; }
};

class Extents {
 public:
  // Blocks of equal size, one after another.
  static Extents uniform(std::size_t bytes) { return Extents(bytes, {}); }
  static Extents table(std::vector<Extent> extents) { return Extents(0, std::move(extents)); }

  Extent operator[](std::int32_t block) const {
    if (!table_.empty()) return table_[static_cast<std::size_t>(block)];
    return {static_cast<std::size_t>(block) * uniform_, uniform_};
  }
  bool isUniform() const { return table_.empty(); }

 private:
  Extents(std::size_t uniform, std::vector<Extent> table)
      : uniform_(uniform), table_(std::move(table)) {}

  std::size_t uniform_;
  std::vector<Extent> table_;  // empty: uniform
};

}  // namespace moeccl

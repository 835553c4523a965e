#include "src/route/telling.h"

#include <cstring>
#include <span>
#include <stdexcept>

namespace moeccl {

// Where the size is not known, the number of entries comes first.

std::size_t Telling::bytes(int sources, std::int32_t entries) const {
  if (bounded()) return sizeof(std::int32_t) + mostBytes(sources);
  return routes::packedBytes(chunks_, sources, entries, weighted_);
}

std::vector<std::byte> Telling::packed(const routes::RowList& list) const {
  const std::int32_t entries = list.entries();
  std::vector<std::byte> told(bytes(list.sources, entries));
  std::size_t at = 0;
  if (bounded()) {
    std::memcpy(told.data(), &entries, sizeof entries);
    at = sizeof entries;
  }
  routes::pack(list, told.data() + at);
  return told;
}

routes::RowList Telling::read(const std::vector<std::byte>& bytes, int sources,
                              std::int32_t entries) const {
  std::span<const std::byte> list = bytes;
  if (bounded()) {
    std::memcpy(&entries, bytes.data(), sizeof entries);
    if (entries < 0 || entries > std::int64_t{most_} * sources)
      throw std::invalid_argument("a list of more rows than there can be");
    list = list.subspan(sizeof entries, routes::packedBytes(chunks_, sources, entries, weighted_));
  }
  return routes::unpack(list, chunks_, sources, entries, weighted_, experts_);
}

}  // namespace moeccl

// Packs lists of rows into bytes, checks and unpacks those of others, indexes them by row and
// chunk, and finds the relays that rows pass.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "algorithms/routes/route.h"

namespace moeccl::routes {
namespace {

std::size_t paddedBytes(std::int64_t entries) {
  return (static_cast<std::size_t>(entries) * sizeof(std::uint16_t) + 3) / 4 * 4;
}

template <typename T>
void write(std::byte*& to, const std::vector<T>& values, std::size_t bytes) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  to += bytes;
}

template <typename T>
void read(const std::byte*& from, std::size_t count, std::size_t bytes, std::vector<T>* values) {
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), from, count * sizeof(T));
  from += bytes;
}

}  // namespace

void RowList::clear(int chunksNow, int sourcesNow) {
  chunks = chunksNow;
  sources = sourcesNow;
  counts.assign(static_cast<std::size_t>(chunks) * static_cast<std::size_t>(sources), 0);
  experts.clear();
  weights.clear();
}

void IndexedRows::index() {
  rowBegins.clear();
  for (std::int32_t entry = 0; entry < list.entries(); ++entry)
    if ((list.experts[entry] & RowList::kFirst) != 0) rowBegins.push_back(entry);
  rowBegins.push_back(list.entries());
  chunkBegins.assign(static_cast<std::size_t>(list.chunks) + 1, 0);
  for (int chunk = 0; chunk < list.chunks; ++chunk) {
    chunkBegins[chunk + 1] = chunkBegins[chunk];
    if (list.counts.empty()) continue;
    for (int source = 0; source < list.sources; ++source)
      chunkBegins[chunk + 1] +=
          list.counts[static_cast<std::size_t>(chunk) * list.sources + source];
  }
}

void IndexedRows::reserve(std::size_t entries) {
  list.experts.reserve(entries);
  list.weights.reserve(entries);
  rowBegins.reserve(entries + 1);
}

IndexedRows::IndexedRows(RowList rows) : list(std::move(rows)) { index(); }

std::size_t packedBytes(int chunks, int sources, std::int64_t entries, bool weighted) {
  if (entries == 0) return 0;
  return static_cast<std::size_t>(chunks) * static_cast<std::size_t>(sources) *
             sizeof(std::int32_t) +
         paddedBytes(entries) + (weighted ? static_cast<std::size_t>(entries) * sizeof(float) : 0);
}

void pack(const RowList& list, bool weighted, std::byte* to) {
  if (list.entries() == 0) return;
  write(to, list.counts, list.counts.size() * sizeof(std::int32_t));
  if (list.entries() % 2 != 0)  // the padding
    std::memset(to + paddedBytes(list.entries()) - sizeof(std::uint16_t), 0, sizeof(std::uint16_t));
  write(to, list.experts, paddedBytes(list.entries()));
  if (weighted) write(to, list.weights, list.weights.size() * sizeof(float));
}

void unpack(std::span<const std::byte> from, int chunks, int sources, std::int64_t entries,
            bool weighted, int experts, RowList* to) {
  RowList& list = *to;
  list.clear(chunks, sources);
  if (from.size() != packedBytes(chunks, sources, entries, weighted))
    throw std::invalid_argument("a list of rows of another size than was told");
  if (entries == 0) return;
  const auto count = static_cast<std::size_t>(entries);
  const std::byte* at = from.data();
  read(at, list.counts.size(), list.counts.size() * sizeof(std::int32_t), &list.counts);
  read(at, count, paddedBytes(entries), &list.experts);
  if (weighted) read(at, count, count * sizeof(float), &list.weights);
  std::int64_t told = 0;
  for (const std::int32_t rows : list.counts) {
    if (rows < 0) throw std::invalid_argument("a list with a negative number of rows");
    told += rows;
  }
  if ((list.experts[0] & RowList::kFirst) == 0 ||
      told != std::ranges::count_if(list.experts,
                                    [](std::uint16_t e) { return (e & RowList::kFirst) != 0; }))
    throw std::invalid_argument("a list with another number of rows than it says");
  for (std::int32_t entry = 0; entry < list.entries(); ++entry)
    if (list.expert(entry) >= experts)
      throw std::invalid_argument("a list that names expert " + std::to_string(list.expert(entry)));
}

int relayOf(const Topology& topology, const Way& way, int source, int node) {
  if (topology.nodeOf(source) == node) return source;
  const int relay = way.relay(topology, source, node);
  if (relay != source && (relay < 0 || relay >= topology.ranks() || topology.nodeOf(relay) != node))
    throw std::invalid_argument("rank " + std::to_string(relay) + " is no relay for node " +
                                std::to_string(node));
  return relay;
}

bool hasRelays(const Topology& topology, const Way& way) {
  for (int node = 0; node < topology.nodes(); ++node)
    if (relayOf(topology, way, 0, node) != 0) return true;
  return false;
}

Paths pathsOf(const Topology& topology, const Way& way, int rank) {
  Paths paths;
  paths.relayed.resize(static_cast<std::size_t>(topology.nodes()));
  const int own = topology.nodeOf(rank);
  std::vector<std::vector<int>> sources(static_cast<std::size_t>(topology.ranks()));
  for (int source = 0; source < topology.ranks(); ++source) {
    const int relay = relayOf(topology, way, source, own);
    sources[static_cast<std::size_t>(relay)].push_back(source);
    if (relay == rank) paths.relayed[static_cast<std::size_t>(own)].push_back(source);
  }
  for (int node = 0; node < topology.nodes(); ++node)
    if (node != own && relayOf(topology, way, rank, node) == rank)
      paths.relayed[static_cast<std::size_t>(node)].push_back(rank);
  for (int relay = 0; relay < topology.ranks(); ++relay)
    if (auto& theirs = sources[static_cast<std::size_t>(relay)]; !theirs.empty())
      paths.relays.emplace_back(relay, std::move(theirs));
  return paths;
}

}  // namespace moeccl::routes

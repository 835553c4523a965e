#include "algorithms/collective.h"

#include <array>

namespace moeccl {
namespace {
constexpr std::array<std::string_view, kCollectives> kNames = {"alltoall", "allgather"};
}

std::string_view nameOf(Collective collective) { return kNames[static_cast<size_t>(collective)]; }

std::optional<Collective> collectiveNamed(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Collective>(i);
  return std::nullopt;
}

int Contract::inputBlocks(int) const { return collective == Collective::allToAll ? ranks : 1; }

int Contract::outputBlocks(int) const { return ranks; }

std::vector<Payload> Contract::expected(int rank, int outputBlock) const {
  switch (collective) {
    case Collective::allToAll:
      return {{outputBlock, rank}};
    case Collective::allGather:
      return {{outputBlock, 0}};
  }
  return {};
}

}  // namespace moeccl

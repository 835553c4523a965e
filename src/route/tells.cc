// Exchanges blocks of equal size: among all ranks by an all-to-all on hosts, by single messages on
// GPUs and among some ranks.
#include "src/route/tells.h"

#include <cstring>
#include <utility>
#include <vector>

namespace moeccl {

void tellEachOther(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
                   const void* tells, void* told, std::size_t bytes) {
  if (!communicator.device()) {
    CollectiveCall call{{tells, told, bytes}, Collective::allToAll};
    call.inside = name;
    communicator.decide(call);
    return communicator.launch({std::move(call)}, nullptr);
  }
  const auto* const from = static_cast<const std::byte*>(tells);
  auto* const to = static_cast<std::byte*>(told);
  std::vector<RankBytes> sends, receives;
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    const std::byte* const part = from + static_cast<std::size_t>(rank) * bytes;
    sends.push_back({rank, {part, part + bytes}});
    receives.push_back(sends.back());
  }
  communicator.exchange(name, sends, receives);
  for (std::size_t rank = 0; rank < receives.size(); ++rank)
    std::memcpy(to + rank * bytes, receives[rank].bytes.data(), bytes);
}

std::vector<std::vector<std::byte>> tellGroup(Communicator& communicator,
                                              const std::shared_ptr<const PlanName>& name,
                                              const std::vector<int>& ranks,
                                              const std::vector<std::byte>& mine) {
  std::vector<RankBytes> sends;
  for (const int rank : ranks) sends.push_back({rank, mine});
  std::vector<RankBytes> receives = sends;
  communicator.exchange(name, sends, receives);
  std::vector<std::vector<std::byte>> told;
  for (RankBytes& from : receives) told.push_back(std::move(from.bytes));
  return told;
}

}  // namespace moeccl

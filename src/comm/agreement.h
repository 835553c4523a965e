// What the ranks of a new communicator must agree on, of whichever kind it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/bootstrap/oob.h"
#include "src/comm/communicator.h"

namespace moeccl {

// Collective; throws Error (InvalidUsage) when ranks came with different settings.
void requireAgreement(Oob& oob, const Settings& settings);

// The ranks with one color, in the order of a split.
struct SplitGroup {
  std::vector<int> members;  // ranks of the parent; none for MOECCL_SPLIT_NOCOLOR
  std::vector<int> nodes;    // of the parent, by rank of the group
  int rank = -1;             // the caller's in the group
  std::string disagreement;  // on settings; "" when there is none
};
// Collective over the parent. Throws Error on all ranks where one comes with wrong arguments.
SplitGroup agreeOnSplit(Oob& oob, const Topology& parent, int color, int key,
                        const Settings& settings, const std::optional<Error>& wrong);

// Throws Error (InvalidUsage) when ranks came with different settings: their texts are exchanged
// only where digests differ.
void requireAgreementAtOnce(Oob& oob, const Settings& settings);

// Collective. Throws Error (InvalidUsage) where rank 0 and another one have different values in the
// same place of what they came with (`what`); all ranks have as many. nameOf(place), textOf(place,
// value).
template <typename NameOf, typename TextOf>
void requireSameValues(Communicator& communicator, std::span<const std::int64_t> mine,
                       const NameOf& nameOf, const TextOf& textOf,
                       const std::string& what = "configs") {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(communicator.ranks()));
  communicator.allgather(mine.data(), all.data(), mine.size_bytes());
  for (std::size_t i = mine.size(); i < all.size(); ++i)
    if (const std::size_t place = i % mine.size(); all[i] != all[place])
      throw Error(moecclInvalidUsage, "ranks came with different " + what + ": " + nameOf(place) +
                                          " is " + textOf(place, all[place]) + " on rank 0 and " +
                                          textOf(place, all[i]) + " on rank " +
                                          std::to_string(i / mine.size()));
}
// Collective. Throws Error (InvalidUsage) where rank 0 and another one have different texts, by
// their hashes.
void requireSameText(Communicator& communicator, std::string_view text);

// A communicator's own all-gather, in the place of a launcher's.
class CommunicatorOob : public Oob {
 public:
  explicit CommunicatorOob(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int ranks() const override { return communicator_.ranks(); }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    communicator_.allgather(send, recv, bytes);
  }

 private:
  Communicator& communicator_;
};

}  // namespace moeccl

// What the ranks of a new communicator must agree on, of whichever kind it is.
#pragma once

#include <optional>
#include <string>
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

// What the opaque handles of the C API point to.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/api/profile_check.h"
#include "src/base/boundary.h"
#include "src/base/live_handles.h"
#include "src/comm/communicator.h"
#include "src/comm/stream.h"
#include "src/model/cluster.h"
#include "src/model/cost_model.h"

namespace moeccl {

// The typical links that a communicator's calls are priced by where no profile says more.
inline Typical typicalOf(const Communicator& communicator) {
  const auto device = communicator.device();
  return typicalOf(!device          ? moecclLinksHost
                   : device->nvlink ? moecclLinksNvlink
                                    : moecclLinksPcie);
}

class LayerQuestions;  // questions.h

struct CommState {
  std::unique_ptr<Communicator> communicator;
  std::string lastError;
  std::unique_ptr<CostModel> model;  // of the choices that nobody has fixed
  ProfileCheck profileCheck;
  std::vector<std::string> told;  // choices that the log has, "alltoall pairwise"
};

}  // namespace moeccl

// Its state is kept with the handle (live_handles.h).
struct moecclComm {};

// All groups are communicators of the public kind: a grid is a convenience over moecclCommSplit.
struct moecclGrid {
  moecclGridShape_t shape;
  std::array<moecclComm_t, moecclNumGroups> comms{};  // the world is the caller's
  std::shared_ptr<moeccl::LayerQuestions> questions;  // once a layer has asked one

  ~moecclGrid() { leaveGroups(moecclCommDestroy); }
  // Returns the first error.
  moecclResult_t leaveGroups(moecclResult_t (*leave)(moecclComm_t));
};

namespace moeccl {

// A communicator as a function was given it.
struct HeldComm {
  moecclComm_t comm = nullptr;
  std::shared_ptr<CommState> state;  // nullptr: not usable
  HandleState handle = HandleState::unknown;

  bool isNull() const { return comm == nullptr; }

  CommState* operator->() const { return state.get(); }
  CommState& operator*() const { return *state; }
};

// A function holds the state while it runs: another thread may abort the communicator meanwhile.
inline HeldComm hold(moecclComm_t comm) {
  if (comm == nullptr) return {};
  const KnownHandle known = findHandle(HandleKind::communicator, comm);
  if (known.state != HandleState::live) return {comm, nullptr, known.state};
  return {comm, std::static_pointer_cast<CommState>(known.object), known.state};
}

inline Communicator& communicatorOf(const HeldComm& held) {
  require(!held.isNull(), "comm is NULL; pass a communicator made by moecclCommInit... or Split");
  requireLive(HandleKind::communicator, held.handle);
  return *held->communicator;
}

inline std::string* lastErrorOf(const HeldComm& held) {
  return held.state == nullptr ? nullptr : &held->lastError;
}

inline moecclGrid& gridOf(moecclGrid_t grid) {
  require(grid != nullptr, "grid is NULL; pass a grid made by moecclGridCreate");
  requireLive(HandleKind::grid, grid);
  return *grid;
}

// The communicator that a grid was made on; not usable where the grid is not.
inline HeldComm holdWorld(moecclGrid_t grid) {
  const bool lives =
      grid != nullptr && findHandle(HandleKind::grid, grid).state == HandleState::live;
  return lives ? hold(grid->comms[moecclGroupWorld]) : HeldComm{};
}

inline Stream* streamOf(moecclStream_t stream) {
  requireLive(HandleKind::stream, stream);
  return static_cast<Stream*>(stream);
}

}  // namespace moeccl

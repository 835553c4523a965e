// What the opaque handles of the C API point to.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/base/boundary.h"
#include "src/base/live_handles.h"
#include "src/comm/communicator.h"
#include "src/comm/stream.h"

namespace moeccl {

class LayerQuestions;  // of src/model

}  // namespace moeccl

// The communicator is kept with the handle (live_handles.h).
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
  std::shared_ptr<Communicator> communicator;  // nullptr: not usable
  HandleState handle = HandleState::unknown;

  bool isNull() const { return comm == nullptr; }

  Communicator* operator->() const { return communicator.get(); }
  Communicator& operator*() const { return *communicator; }
};

// A function holds the communicator while it runs: another thread may abort the communicator
// meanwhile.
inline HeldComm hold(moecclComm_t comm) {
  if (comm == nullptr) return {};
  const KnownHandle known = findHandle(HandleKind::communicator, comm);
  if (known.state != HandleState::live) return {comm, nullptr, known.state};
  return {comm, std::static_pointer_cast<Communicator>(known.object), known.state};
}

inline Communicator& communicatorOf(const HeldComm& held) {
  require(!held.isNull(), "comm is NULL; pass a communicator made by moecclCommInit... or Split");
  requireLive(HandleKind::communicator, held.handle);
  return *held;
}

inline std::string* lastErrorOf(const HeldComm& held) {
  return held.communicator == nullptr ? nullptr : &held->lastError();
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

}  // namespace moeccl

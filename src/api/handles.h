// What the opaque handles of the C API point to.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "moeccl/moeccl.h"
#include "src/api/boundary.h"
#include "src/api/questions.h"
#include "src/comm/communicator.h"
#include "src/comm/stream.h"
#include "src/select/cost_model.h"

namespace moeccl {

struct CommState {
  std::unique_ptr<Communicator> communicator;
  std::string lastError;
  std::unique_ptr<CostModel> model;  // of the choices that nobody has fixed
};

}  // namespace moeccl

struct moecclComm {
  std::shared_ptr<moeccl::CommState> state;
};

// All groups are communicators of the public kind: a grid is a convenience over moecclCommSplit.
struct moecclGrid {
  moecclGridShape_t shape;
  std::array<moecclComm_t, moecclNumGroups> comms{};  // the world is the caller's
  moeccl::LayerQuestions questions;

  ~moecclGrid() { leaveGroups(moecclCommDestroy); }
  // Returns the first error.
  moecclResult_t leaveGroups(moecclResult_t (*leave)(moecclComm_t));
};

namespace moeccl {

// A function holds the state while it runs: another thread may abort the communicator meanwhile.
inline std::shared_ptr<CommState> hold(moecclComm_t comm) {
  return comm == nullptr ? nullptr : comm->state;
}

inline Communicator& communicatorOf(const std::shared_ptr<CommState>& state) {
  require(state != nullptr, "comm is NULL; pass a communicator made by moecclCommInit... or Split");
  return *state->communicator;
}

inline std::string* lastErrorOf(const std::shared_ptr<CommState>& state) {
  return state == nullptr ? nullptr : &state->lastError;
}

inline const moecclGrid& gridOf(moecclGrid_t grid) {
  require(grid != nullptr, "grid is NULL; pass a grid made by moecclGridCreate");
  return *grid;
}

inline Grid asGrid(const moecclGridShape_t& shape) {
  return {shape.nMp, shape.nEp, shape.nEsp, shape.order == moecclOrderEspEp};
}

inline Stream* streamOf(moecclStream_t stream) { return static_cast<Stream*>(stream); }

}  // namespace moeccl

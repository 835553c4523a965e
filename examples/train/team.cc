#include "team.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace train {

void fail(const std::string& what, moecclComm_t comm) {
  std::fflush(stdout);
  const char* const why = moecclGetLastError(comm);
  std::fprintf(stderr, "train: %s%s%s\n", what.c_str(), *why != '\0' ? ": " : "", why);
  std::_Exit(1);
}

Team::Team(moecclComm_t world, const moecclGridShape_t& shape) : world_(world), shape_(shape) {
  require(moecclCommCount(world, &ranks_), "asking for the number of ranks", world);
  require(moecclCommUserRank(world, &rank_), "asking for the rank", world);
  const moecclResult_t made = moecclGridCreate(world, shape, &grid_);
  if (made == moecclInvalidArgument) throw std::invalid_argument(moecclGetLastError(world));
  require(made, "making the grid", world);
  require(moecclGridGetComm(grid_, moecclGroupMp, &mp_), "asking for the MP group", world);
  moecclComm_t esp = nullptr;
  require(moecclGridGetComm(grid_, moecclGroupEsp, &esp), "asking for the ESP group", world);
  require(moecclCommUserRank(esp, &espRank_), "asking for the rank in the ESP group", esp);
  require(moecclCommSplit(world, mpRank(), rank_, &peers_, nullptr), "splitting", world);
}

Team::~Team() {
  require(moecclCommDestroy(peers_), "leaving the communicator across MP groups");
  require(moecclGridDestroy(grid_), "taking the grid down");
}

void Team::sum(float* values, std::size_t count, moecclComm_t comm) {
  require(moecclAllReduce(values, values, count, moecclFloat32, moecclSum, comm, nullptr),
          "summing", comm);
}

void Team::sumOverMpGroups(double* values, std::size_t count) const {
  require(moecclAllReduce(values, values, count, moecclFloat64, moecclSum, peers_, nullptr),
          "summing", peers_);
}

void Team::share(void* bytes, std::size_t size) const {
  // As integers, whose sum with zeros has the same bits whatever they mean.
  require(moecclAllReduce(bytes, bytes, size, moecclUint8, moecclSum, world_, nullptr), "sharing",
          world_);
}

}  // namespace train

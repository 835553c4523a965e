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

Team::Team(moecclComm_t world, int stages, const moecclGridShape_t& shape)
    : world_(world), stages_(stages), shape_(shape) {
  require(moecclCommCount(world, &ranks_), "asking for the number of ranks", world);
  require(moecclCommUserRank(world, &rank_), "asking for the rank", world);
  require(moecclCommSplit(world, stage(), rank_, &stageComm_, nullptr), "splitting", world);
  const moecclResult_t made = moecclGridCreate(stageComm_, shape, &grid_);
  if (made == moecclInvalidArgument) {
    const std::string why = moecclGetLastError(stageComm_);
    require(moecclCommDestroy(stageComm_), "leaving the stage");
    throw std::invalid_argument(why);
  }
  require(made, "making the grid", stageComm_);
  require(moecclGridGetComm(grid_, moecclGroupMp, &mp_), "asking for the MP group", stageComm_);
  moecclComm_t esp = nullptr;
  require(moecclGridGetComm(grid_, moecclGroupEsp, &esp), "asking for the ESP group", stageComm_);
  require(moecclCommUserRank(esp, &espRank_), "asking for the rank in the ESP group", esp);
  require(moecclCommSplit(stageComm_, mpRank(), rank_, &peers_, nullptr), "splitting", stageComm_);
}

Team::~Team() {
  require(moecclCommDestroy(peers_), "leaving the communicator across MP groups");
  require(moecclGridDestroy(grid_), "taking the grid down");
  require(moecclCommDestroy(stageComm_), "leaving the stage");
}

void Team::sum(Real* values, std::size_t count, moecclComm_t comm) {
  require(moecclAllReduce(values, values, count, kReal, moecclSum, comm, nullptr), "summing", comm);
}

void Team::sumOverWorld(double* values, std::size_t count) const {
  require(moecclAllReduce(values, values, count, moecclFloat64, moecclSum, world_, nullptr),
          "summing", world_);
}

void Team::share(void* bytes, std::size_t size) const {
  // As integers, whose sum with zeros has the same bits whatever they mean.
  require(moecclAllReduce(bytes, bytes, size, moecclUint8, moecclSum, world_, nullptr), "sharing",
          world_);
}

}  // namespace train

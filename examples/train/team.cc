// Makes the groups of the ranks, and sums and shares over them.
#include "team.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

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

void Team::agree(const std::function<void()>& step) const {
  std::string error;
  try {
    step();
  } catch (const std::bad_alloc&) {
    error = "rank " + std::to_string(rank_) + " is out of memory";
  } catch (const std::exception& thrown) {
    error = thrown.what();
    if (error.empty()) error = "rank " + std::to_string(rank_) + " failed";
  }
  std::vector<unsigned char> failed(static_cast<std::size_t>(ranks_));
  failed[static_cast<std::size_t>(rank_)] = !error.empty();
  share(failed.data(), failed.size());
  const auto first = std::ranges::find(failed, 1);
  if (first == failed.end()) return;
  std::array<char, 1024> text{};
  if (first - failed.begin() == rank_) error.copy(text.data(), text.size() - 1);
  share(text.data(), text.size());
  throw std::invalid_argument(text.data());
}

void Team::share(void* bytes, std::size_t size) const {
  // As integers, whose sum with zeros has the same bits whatever they mean.
  require(moecclAllReduce(bytes, bytes, size, moecclUint8, moecclSum, world_, nullptr), "sharing",
          world_);
}

}  // namespace train

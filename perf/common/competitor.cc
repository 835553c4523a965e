// Runs one collective of moeccl with one algorithm, on a communicator that is split off for it.
#include "perf/common/competitor.h"

#include <stdexcept>

namespace moeccl::perf {
namespace {

class MoecclCompetitor : public Competitor {
 public:
  MoecclCompetitor(std::string name, const MeasuredCollective& collective, const World& world,
                   Comm comm, Memory& memory)
      : Competitor(std::move(name), false),
        collective_(collective),
        world_(world),
        comm_(std::move(comm)),
        memory_(memory),
        barrier_(memory, static_cast<std::size_t>(world.ranks) + 1) {
    if (!collective.usesGrid) return;
    moecclGrid_t grid = nullptr;
    require(moecclGridCreate(comm_.get(), world.grid, &grid), "make the grid", comm_.get());
    grid_.reset(grid);
  }

  void exchange(const void* send, void* recv, std::size_t count, const DataType& type) override {
    require(collective_.call({send, recv, count, type.value, comm_.get(), grid_.get(),
                              memory_.stream(), world_}),
            collective_.name.data(), comm_.get());
  }

  void barrier() override {
    require(moecclAllGather(barrier_.data() + world_.ranks, barrier_.data(), 1, moecclInt8,
                            comm_.get(), memory_.stream()),
            "barrier", comm_.get());
    memory_.synchronize();
  }

 private:
  const MeasuredCollective& collective_;
  const World& world_;
  Comm comm_;
  Grid grid_;
  Memory& memory_;
  Buffer barrier_;  // a byte from each rank, and the own one
};

}  // namespace

void require(moecclResult_t result, const char* what, moecclComm_t comm) {
  if (result == moecclSuccess) return;
  std::string text = moecclGetLastError(comm);
  if (text.empty()) text = moecclGetErrorString(result);
  throw std::runtime_error(std::string(what) + ": " + text);
}

std::unique_ptr<Competitor> makeCompetitor(const MeasuredCollective& collective, const World& world,
                                           const std::string& algorithm, moecclComm_t comm,
                                           Memory& memory) {
  const std::string setting = std::string(collective.name) + "=" + algorithm;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  if (algorithm != "auto") config.algorithms = setting.c_str();
  int rank = 0;
  require(moecclCommUserRank(comm, &rank), "ask for the rank", comm);
  moecclComm_t own = nullptr;
  require(moecclCommSplit(comm, 0, rank, &own, &config), setting.c_str(), comm);
  return std::make_unique<MoecclCompetitor>(algorithm, collective, world, Comm(own), memory);
}

}  // namespace moeccl::perf

// Registers tests and benchmarks of ranks, and gives each the communicators that it asks for.
#include "tests/gpu/ranks/rank.h"

#include <stdexcept>
#include <utility>

#include "algorithms/registry.h"
#include "tests/api/results.h"

namespace moeccl::gpu {
namespace {

using test::check;

// By whether they measure, and by name: files register in the order in which they are linked.
std::map<std::pair<bool, std::string>, RanksTest>& registered() {
  static std::map<std::pair<bool, std::string>, RanksTest> all;
  return all;
}

std::vector<RanksTest> thoseThat(bool measure) {
  std::vector<RanksTest> tests;
  for (const auto& [key, test] : registered())
    if (key.first == measure) tests.push_back(test);
  return tests;
}

// "alltoall=pairwise;allgather=ring;..."
std::string algorithmsInTurn(int turn) {
  std::string text;
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    const std::vector<std::string> names = algorithmsOf(collective);
    if (turn < static_cast<int>(names.size()))
      text += std::string(nameOf(collective)) + "=" + names[static_cast<std::size_t>(turn)] + ";";
  }
  return text;
}

}  // namespace

Rank::Rank(moecclComm_t comm, test::Device& device, Watcher& watcher, bool quick)
    : device_(device), watcher_(watcher), quick_(quick), comm_(comm) {
  check(moecclCommUserRank(comm, &rank_), comm);
  check(moecclCommCount(comm, &ranks_), comm);
  stream_ = device.newStream();
}

Rank::~Rank() {
  for (const auto& [turn, comm] : turns_) moecclCommAbort(comm);
  moecclCommAbort(comm_);
  if (stream_ != nullptr) device_.deleteStream(stream_);
}

void Rank::leave() {
  watcher_.step("leaving");
  for (auto it = grids_.begin(); it != grids_.end(); it = grids_.erase(it))
    check(moecclGridDestroy(it->second));
  for (auto it = turns_.begin(); it != turns_.end(); it = turns_.erase(it))
    check(moecclCommDestroy(it->second));
  check(moecclCommDestroy(std::exchange(comm_, nullptr)));
}

void Rank::step(const std::string& text, const std::function<void()>& work) {
  watcher_.step(text);
  ++steps_;
  try {
    work();
  } catch (const std::exception& error) {
    watcher_.failed(text + ": " + error.what());
  }
}

moecclComm_t Rank::inTurn(int turn) {
  moecclComm_t& comm = turns_[turn];
  if (comm != nullptr) return comm;
  const std::string algorithms = algorithmsInTurn(turn);
  watcher_.step("a communicator with " + algorithms);
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.algorithms = algorithms.c_str();
  check(moecclCommSplit(comm_, 0, rank_, &comm, &config), comm_);
  return comm;
}

moecclGrid_t Rank::gridInTurn(int turn, const moecclGridShape_t& shape) {
  moecclGrid_t& grid = grids_[{turn, {shape.nMp, shape.nEp, shape.nEsp, shape.order}}];
  if (grid != nullptr) return grid;
  const moecclComm_t comm = inTurn(turn);
  watcher_.step("a grid");
  check(moecclGridCreate(comm, shape, &grid), comm);
  return grid;
}

std::vector<std::string> algorithmsOf(Collective collective) {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.collective == collective) names.emplace_back(algorithm.name);
  return names;
}

bool registerRanks(const RanksTest& test, bool measures) {
  return registered().try_emplace({measures, test.name}, test).second;
}

std::vector<RanksTest> ranksTests() { return thoseThat(false); }
std::vector<RanksTest> ranksBenches() { return thoseThat(true); }

}  // namespace moeccl::gpu

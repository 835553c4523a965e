// Tests of several ranks on one GPU, written once for real GPUs, where each rank is a process
// (main.cc), and for doubles of CUDA and NCCL, where it is a thread (tests/api/gpu_test.cc).
//
// A test is a function of one rank, called on all ranks at about the same time. It is made of
// steps; whoever watches is told which one a rank is in, and so in which it is stuck. A step that
// throws has failed, and the test goes on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/collective.h"
#include "moeccl/moeccl.h"
#include "tests/api/device.h"

namespace moeccl::gpu {

// Who watches a rank.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void step(const std::string& text) = 0;
  virtual void failed(const std::string& text) = 0;
};

class Rank {
 public:
  // Takes `comm` over. `quick`: small sizes do.
  Rank(moecclComm_t comm, test::Device& device, Watcher& watcher, bool quick);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  // Aborts what leave() has not destroyed.
  ~Rank();
  // Destroys all communicators. Collective. Throws.
  void leave();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  moecclComm_t comm() const { return comm_; }
  test::Device& device() const { return device_; }
  bool quick() const { return quick_; }
  // One that waits for no other.
  moecclStream_t stream() const { return stream_; }

  // All ranks take the same steps.
  void step(const std::string& text, const std::function<void()>& work);
  int steps() const { return steps_; }

  // Communicators and grids that tests share. The first ask is collective.
  //
  // Algorithms take turns: in turn t each collective has the algorithm that is registered at place
  // t.
  moecclComm_t inTurn(int turn);
  moecclGrid_t gridInTurn(int turn, const moecclGridShape_t& shape);

 private:
  using Shape = std::tuple<int, int, int, int>;

  test::Device& device_;
  Watcher& watcher_;
  const bool quick_;
  moecclComm_t comm_;
  moecclStream_t stream_ = nullptr;
  int rank_ = 0, ranks_ = 1, steps_ = 0;
  std::map<int, moecclComm_t> turns_;
  std::map<std::pair<int, Shape>, moecclGrid_t> grids_;
};

// Names of the algorithms that GPU communicators offer, by turn.
std::vector<std::string> algorithmsOf(Collective collective);

struct RanksTest {
  const char* name;
  void (*run)(Rank&);
};
// In an order that is the same in all processes.
std::vector<RanksTest> ranksTests();
// What measures; rank 0 prints.
std::vector<RanksTest> ranksBenches();
bool registerRanks(const RanksTest& test, bool measures);

#define RANKS_TEST(name) MOECCL_RANKS(name, false)
#define RANKS_BENCH(name) MOECCL_RANKS(name, true)
#define MOECCL_RANKS(name, measures)                                                            \
  static void name(::moeccl::gpu::Rank&);                                                       \
  static const bool registered_##name = ::moeccl::gpu::registerRanks({#name, &name}, measures); \
  static void name(::moeccl::gpu::Rank& rank)

}  // namespace moeccl::gpu

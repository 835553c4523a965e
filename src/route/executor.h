// Runs schedules: their phases in order, exchanges by the collectives of their groups, moves by
// Mover, and by Work what only the layer can compute. It computes nothing itself.
//
// A pass stops before its experts, for whoever made it to compute them:
//
//     pass.start(...);
//     while (pass.advance()) {
//       ... pass.experts() ...
//     }
//
// Any call may throw Error. Where an exchange failed it is an ExchangeError, whose text begins with
// the phase.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "moeccl/route.h"
#include "src/base/error.h"
#include "src/route/binding.h"
#include "src/route/mover.h"
#include "src/route/pass_memory.h"
#include "src/route/rows.h"
#include "src/route/work.h"

namespace moeccl::schedules {

using Clock = std::chrono::steady_clock;

class ExchangeError : public Error {
 public:
  using Error::Error;
};

// Rows of one of the rank's own experts.
struct ExpertRun {
  std::int64_t expert, begin, count;
  bool counts;  // for the gradients of weights: else they are copies of rows elsewhere
};

// What is due at a stop. Rows are [embedding] wide, each expert's together.
struct ExpertsStep {
  bool backward;
  std::int64_t first;                    // of the rank's own experts
  std::span<const std::int64_t> begins;  // of the rows of expert first + i, and where the last ends
  const void* given;                     // forward, and backward the same rows
  void* made;                            // forward: where results go, which may be `given`
  void* gradients;  // backward: of the results, to be replaced by those of `given`
  // Backward, where rows are there several times: all of them, run by run; else empty.
  std::span<const ExpertRun> copies;
};

// Phases of all experts together where they go one by one.
Schedule atOnce(Schedule schedule);

struct DestroyRoute {
  void operator()(moecclRoute_t route) const { moecclRouteDestroy(route); }
};
using Route = std::unique_ptr<std::remove_pointer_t<moecclRoute_t>, DestroyRoute>;
// Makes the route of passes that route tokens, with a row for each choice's token. Collective over
// the grid. Throws Error.
Route routeFor(const Groups& groups, int experts, int choices, std::int64_t embedding,
               moecclDataType_t datatype);
struct EndRoutePass {
  void operator()(moecclRoutePass_t pass) const { moecclPassEnd(pass); }
};
using RoutePass = std::unique_ptr<std::remove_pointer_t<moecclRoutePass_t>, EndRoutePass>;

// The schedules of a layer, and what all of its passes share. All it is made from must outlive it.
class Executor {
 public:
  // `backward`: null: none. `around`: for passes around the caller's experts, whose rows are the
  // caller's. memory: what passes have that is not their own.
  Executor(const Schedule& forward, const Schedule* backward, const Sizes& sizes,
           const Groups& groups, Mover& mover, PassMemory& memory, bool around = false);

  const Sizes& sizes() const { return sizes_; }
  const Groups& groups() const { return groups_; }
  Mover& mover() const { return mover_; }
  // Sets the route for schedules that route tokens: one that fits, on the grid. It is set before
  // the first pass, and must outlive the passes' beginnings.
  void setRoute(moecclRoute_t route) { route_ = route; }
  moecclRoute_t route() const { return route_; }
  const Binding& forward() const { return forward_; }
  const Binding* backward() const { return backward_ ? &*backward_ : nullptr; }
  PassMemory& memory() { return memory_; }
  // Stream `number` of a schedule, from 1 on.
  SideStream& side(int number) { return *sides_[static_cast<std::size_t>(number - 1)]; }
  const std::vector<PassBuffer>& buffers() const {
    return backward_ ? backward_->buffers() : forward_.buffers();
  }
  std::int64_t keptRoom() const { return sizes_.at(Dim::keptRows); }

 private:
  const Sizes& sizes_;
  const Groups& groups_;
  Mover& mover_;
  Binding forward_;
  std::optional<Binding> backward_;
  PassMemory& memory_;
  std::vector<std::unique_ptr<SideStream>> sides_;
  moecclRoute_t route_ = nullptr;
};

// A forward pass and what is kept of it, and its backward pass.
class PassRun {
 public:
  // memory: the pass's own. All must outlive this.
  PassRun(Executor& executor, Work& work, PassMemory& memory);

  // input and output [tokens][embedding] may be the same; the caller's while the pass is under way.
  void start(Pass pass, const void* input, void* output, moecclStream_t stream);
  // Goes on to the next experts, or to the end of the pass: then false. What advance() returned
  // true for has been computed.
  bool advance();
  const ExpertsStep& experts() const { return step_; }
  // Between two experts: lets exchanges advance.
  void progress();
  // After a failure: what is under way beside the stream comes before what that is asked for next.
  void abandon();
  // The last exchange of the pass that did not fail; "": none.
  const char* lastExchange() const { return lastExchange_; }

  // From the next start on, takes the time of phases, where the caller's thread computes.
  void takeTimes() { timed_ = true; }
  // Nanoseconds of the pass that has ended: by phase, and behind them what belongs to none. What
  // the thread waited for an exchange beside its own stream is that exchange's; experts are what
  // came between two calls of advance.
  std::span<const std::int64_t> times() const {
    return {times_.data(), half_->schedule().phases.size() + 1};
  }

  // A pass around the caller's experts instead, call by call, of schedules without chunks. tell()
  // begins it: it finds out how many rows come. Whatever moves rows may be repeated; toTokens and
  // toTokensBackward come after what they need has been computed. A backward pass is that of the
  // last toTokens().
  void tell(moecclStream_t stream);
  void toRows(const void* tokens, void* rows, moecclStream_t stream);
  void toTokens(const void* results, void* output, moecclStream_t stream);
  void toRowsBackward(const void* outputGradients, const void* results, void* rowGradients,
                      moecclStream_t stream);
  void toTokensBackward(const void* rowGradients, void* tokenGradients, moecclStream_t stream);
  // After tell(): where the rows of each of the rank's experts begin, and how many of them come
  // from each rank, [localExperts][ranks], which is added to.
  std::span<const std::int64_t> rowBegins();
  void countRows(std::span<std::int64_t> counts);
  // Leaves the time until then out of the experts' time: somebody else did something else.
  void skipTo(Clock::time_point time) { last_ = std::max(last_, time); }

 private:
  // One of the two passes.
  struct Half {
    explicit Half(const Binding& bound) : binding(bound) {}
    const Schedule& schedule() const { return binding.schedule(); }

    const Binding& binding;
    std::size_t experts = 0;                     // the first phase of these
    std::vector<std::optional<Layout>> layouts;  // by table, of those with runs
    std::vector<char> written;                   // by table: in this pass
    std::vector<int> gradients;  // of weights, that nobody reads: to be added to the caller's
  };

  const Schedule& schedule() const { return half_->schedule(); }
  const Table& table(int index) const { return schedule().tables[static_cast<std::size_t>(index)]; }
  void makeLayouts(Half& half, const Half* forward);
  static void findGradients(Half& half);
  Memory& memoryOf(std::size_t buffer);
  std::size_t& roomOf(std::size_t buffer);
  void reserve(std::size_t buffer, std::int64_t bytes);
  void reserveKept();

  void* at(int table) const;
  const Layout& layout(int table) const { return *half_->layouts[static_cast<std::size_t>(table)]; }
  std::int64_t elements(int table) const;
  std::int64_t rowsOf(int table) const;  // of one that is bound late
  std::int64_t summands(int table) const;

  // halves.cc
  enum class Part : std::uint8_t { none, tells, before, behind };
  Part partOf(const Half& half, std::size_t phase) const;
  void runPart(Part part, moecclStream_t stream);

  void step();
  void bind(const Phase& phase);
  void bindRows(int counts);
  void bindChunk(int counts);
  void reserveRows(int table);
  void readCounts(int table);
  void wait(std::size_t index);
  void join(int stream, const std::string& phase);
  // Adds the time since the last lap to the phase's.
  void lap(std::size_t phase);
  void check(const std::string& phase, moecclResult_t result);
  void run(const Phase& phase);
  void compute(const Phase& phase);
  void setExperts(const Phase& phase);
  std::span<const std::int64_t> beginsOf(int rows);
  void listCopies(int rows);
  void joinAll();
  void finish();

  // routed_phases.cc
  void route(const Phase& phase);
  void moveRouted(const Phase& phase);
  moecclResult_t moveRouted(const Phase& phase, moecclStream_t stream);
  struct Routed;
  Routed& routed(const Phase& phase);
  void takeWeightGradients(Routed& of);

  // exchanges.cc
  void exchange(const Phase& phase);
  moecclResult_t even(const Phase& phase, moecclStream_t stream);
  moecclResult_t ofRows(const Phase& phase, moecclStream_t stream);
  moecclResult_t reduceAll(const Phase& phase, moecclStream_t stream);
  void addSummands(const Phase& phase);
  void clearPadding(int table, moecclStream_t stream);

  // moves.cc
  void split(const Phase& phase);
  void joinParts(const Phase& phase);
  void regroup(const Phase& phase);
  void regroupRuns(const Phase& phase);
  void regroupBlocks(const Phase& phase, const void* from, std::int64_t distance,
                     std::size_t depth);
  void addRun(void* to, const void* from, std::int64_t count);
  void add(const Phase& phase);
  std::int64_t tokensOf(const Table& table) const;  // of the rank's part, or chunk of it

  Executor& executor_;
  Work& work_;
  Mover& mover_;
  const Sizes& sizes_;
  const Groups& groups_;
  std::vector<Counts> counts_;  // by chunk
  Half forward_;
  std::optional<Half> backward_;
  PassMemory& memory_;

  // The pass under way:
  Half* half_ = nullptr;
  const void* input_ = nullptr;
  void* output_ = nullptr;
  // The caller's, as Storage has them.
  void* rows_ = nullptr;
  const void *results_ = nullptr, *again_ = nullptr;
  moecclStream_t stream_ = nullptr;
  std::size_t next_ = 0;           // phase
  std::int64_t expert_ = -1;       // of those that go one by one; -1: none do
  std::size_t firstOfExpert_ = 0;  // phase of these
  bool stopped_ = false;           // at the experts of phase next_
  std::vector<char> ran_;          // by phase: in the call at hand, of a pass around experts
  std::vector<char> bound_;        // by chunk: rows that are bound late
  std::vector<int> ownCounts_;     // by chunk: table
  std::vector<int> joined_;        // by stream: up to which phase the pass has waited for it
  std::vector<int> queued_;        // by stream: its last phase
  const char* lastExchange_ = "";
  bool timed_ = false;
  Clock::time_point last_;
  std::vector<std::int64_t> times_;
  // Token routing of a chunk.
  struct Routed {
    RoutePass pass;           // begun forward, for both passes
    std::int64_t tokens = 0;  // of that
    Memory weightGradients;   // as it gives them
    std::size_t room = 0;
    const Phase* weighted = nullptr;  // in which it does, until they are taken
  };
  std::vector<Routed> routed_;
  ExpertsStep step_{};
  std::vector<std::int64_t> begins_;
  std::vector<ExpertRun> copies_;
  std::vector<CopiedRun> runs_;  // of the regroup at hand
  std::vector<void*> reads_, writes_;
  std::unique_ptr<bool[]> first_;
  std::vector<std::int64_t> hostCounts_;
  std::vector<std::size_t> sendCounts_, sendBegins_, recvCounts_, recvBegins_;
};

}  // namespace moeccl::schedules

// Runs the passes of a schedule, of layers and of routes alike: phases in order, exchanges by the
// collectives of their groups, moves by Mover, and by RowWork what only the layer or the route can
// do. It computes nothing itself.
//
// A layer's pass stops before its experts, for whoever made it to compute them:
//
//     pass.start(Pass::forward, {.input = tokens, .output = output}, stream);
//     while (pass.advance()) {
//       ... pass.experts() ...
//     }
//
// A pass around the caller's experts is run part by part, by as many such calls, which stop
// nowhere.
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
#include "src/route/row_work.h"
#include "src/route/rows.h"

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

// A forward pass and what is kept of it, and its backward pass.
class PassRun {
 public:
  // What a call runs.
  enum class Part : std::uint8_t {
    whole,  // of a layer
    // Of a pass around the caller's experts, of a schedule without chunks. Whatever moves rows may
    // be repeated.
    tells,   // forward, first: what ranks tell each other; then it is known how many rows come
    before,  // up to the experts; backward after the parts of which it computes the gradients
    behind,  // the rest
    none,    // left out
  };
  // The caller's memory, while a call runs that needs it.
  struct Callers {
    // [tokens][embedding], may be the same.
    const void* input = nullptr;
    void* output = nullptr;
    // Around the caller's experts: what these are given, what they have made of it, and backward
    // what they had made forward.
    void* rows = nullptr;
    const void *results = nullptr, *again = nullptr;
  };

  // own, shared: memory of the pass's own, and what other passes may use between its calls; may be
  // the same. All must outlive this.
  PassRun(RowWork& work, PassMemory& own, PassMemory& shared);
  PassRun(const PassRun&) = delete;
  PassRun& operator=(const PassRun&) = delete;

  // Sets the route for schedules that route tokens: one that fits, on the grid. It is set before
  // the first pass, and must outlive the passes' beginnings.
  void setRoute(moecclRoute_t route) { route_ = route; }

  void start(Pass pass, const Callers& callers, moecclStream_t stream, Part part = Part::whole);
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

  // Of the forward pass, once ranks have told each other: where the rows of each of the rank's
  // experts begin, and how many of them come from each rank, [localExperts][ranks], which is added
  // to.
  std::span<const std::int64_t> rowBegins();
  void countRows(std::span<std::int64_t> counts);
  // Leaves the time until then out of the experts' time: somebody else did something else.
  void skipTo(Clock::time_point time) { last_ = std::max(last_, time); }

 private:
  // One of the two passes.
  struct Half {
    // forward: of a backward pass.
    Half(const RowWork& work, const Half* forward);
    const Schedule& schedule() const { return binding.schedule(); }

    const Binding binding;
    std::size_t experts = 0;                     // the first phase of these
    std::vector<Part> parts;                     // by phase: in which it runs around experts
    std::vector<std::optional<Layout>> layouts;  // by table, of those with runs
    std::vector<char> written;                   // by table: in this pass
    std::vector<int> gradients;  // of weights, that nobody reads: to be added to the caller's
  };

  const Schedule& schedule() const { return half_->schedule(); }
  const Table& table(int index) const { return schedule().tables[static_cast<std::size_t>(index)]; }
  // Calls function(half) for both passes, or the one that there is.
  template <typename Function>
  void eachHalf(Function function) {
    function(forward_);
    if (backward_) function(*backward_);
  }
  static void findGradients(Half& half);
  void makeStreams();
  const std::vector<PassBuffer>& buffers() const {
    return (backward_ ? *backward_ : forward_).binding.buffers();
  }
  const Layout& layout(int table) const { return *half_->layouts[static_cast<std::size_t>(table)]; }

  // Stream `number` of a schedule, from 1 on.
  SideStream& side(int number) { return *sides_[static_cast<std::size_t>(number - 1)]; }
  bool due(std::size_t phase) const { return part_ == Part::whole || half_->parts[phase] == part_; }

  void step();
  void setWritten(std::size_t phase, bool written);
  void wait(std::size_t index);
  void join(int stream, const std::string& phase);
  // Adds the time since the last lap to the phase's.
  void lap(std::size_t phase);
  void check(const std::string& phase, moecclResult_t result);
  void run(const Phase& phase);
  void compute(const Phase& phase);
  void joinAll();
  void finish();

  // pass_room.cc
  void makeRoom();
  std::int64_t keptRoom() const { return sizes_.at(Dim::keptRows); }
  PassMemory& memoryFor(std::size_t buffer) const { return buffers()[buffer].own ? own_ : shared_; }
  void reserve(std::size_t buffer, std::int64_t bytes);
  void reserveKept();
  void reserveRows(int table);
  void* at(int table) const;
  std::int64_t elements(int table) const;
  std::int64_t rowsOf(int table) const;  // of one that is bound late
  std::int64_t summands(int table) const;

  // late_rows.cc
  void makeLayouts(Half& half, const Half* forward);
  void bind(const Phase& phase);
  bool bindRowsOf(const Phase& phase);
  void bindRows(int counts);
  void bindChunk(int counts);
  void readCounts(int table);

  // expert_stops.cc
  void setExperts(const Phase& phase);
  std::span<const std::int64_t> beginsOf(int rows);
  void listCopies(int rows);

  // around_experts.cc
  static Part partOf(const Half& half, std::size_t phase);
  void bindAll();

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

  RowWork& work_;
  Mover& mover_;
  const Sizes& sizes_;
  const Groups& groups_;
  PassMemory &own_, &shared_;
  moecclRoute_t route_ = nullptr;
  std::vector<Counts> counts_;  // by chunk
  Half forward_;
  std::optional<Half> backward_;

  // The pass under way:
  Half* half_ = nullptr;
  Part part_ = Part::none;
  Callers callers_;
  moecclStream_t stream_ = nullptr;
  std::size_t next_ = 0;           // phase
  std::int64_t expert_ = -1;       // of those that go one by one; -1: none do
  std::size_t firstOfExpert_ = 0;  // phase of these
  bool stopped_ = false;           // at the experts of phase next_
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
    Memory rows;  // zeros, where the caller's are not there
    std::size_t rowsRoom = 0;
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
  std::vector<std::unique_ptr<SideStream>> sides_;  // destroyed first: they may use the rest
};

}  // namespace moeccl::schedules

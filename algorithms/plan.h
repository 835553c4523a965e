// A plan is one rank's part of one collective, as a value: what to send, receive, copy and reduce,
// on which lanes, and what waits for what. It names blocks, never bytes, pointers, tags or
// callbacks, so the same plan is verified, priced, printed, cached, simulated and run, at every
// size.
//
// Order. `deps` are the truth: an op may start once every op that it depends on has completed.
// Lanes and steps are the order that a stream machine may impose on top (NCCL does: one step is one
// group, and a lane runs its steps one after another). So every plan must be
//   - right when only deps order the ops (UCX and the loopback execute it that way), and
//   - free of deadlock when lanes run in order and sends wait for their receives (NCCL).
// A dependency inside a lane therefore points to an earlier step. The verifier proves both.
//
// Every block of the output and of the scratch is written at most once, so nothing that a receive
// overwrites is ever needed: receives depend on nothing and may be posted before anything else.
// Where the output may be a part of the input (reductions in place), only one op may read an input
// block: then the result that overwrites it, in whose sum it is, cannot come before it was read.
//
// Matching. Messages from rank a to rank b on one lane match in the order of their ops in the plans
// of a and b. The i-th block of a send arrives in the i-th block of its receive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/topology.h"

namespace moeccl {

enum class Buffer : std::uint8_t { input, output, scratch };

// `count` blocks of one buffer: first, first + stride, first + 2 stride, ...
struct Blocks {
  Buffer buffer;
  std::int32_t first;
  std::int32_t count = 1;
  std::int32_t stride = 1;

  std::int32_t operator[](std::int32_t i) const { return first + i * stride; }
  bool operator==(const Blocks&) const = default;
};

inline Blocks input(int first, int count = 1, int stride = 1) {
  return {Buffer::input, first, count, stride};
}
inline Blocks output(int first, int count = 1, int stride = 1) {
  return {Buffer::output, first, count, stride};
}
inline Blocks scratch(int first, int count = 1, int stride = 1) {
  return {Buffer::scratch, first, count, stride};
}

// A list of blocks under construction; neighbours at equal distance fold into one Blocks.
class BlockList {
 public:
  BlockList() = default;
  BlockList(Blocks blocks) { append(blocks); }
  BlockList(std::initializer_list<Blocks> lists) {
    for (Blocks blocks : lists) append(blocks);
  }
  void append(Blocks blocks) {
    if (blocks.count > 0 && !goesOn(blocks)) add(blocks);
  }
  void append(const BlockList& list) {
    for (Blocks blocks : list.runs()) append(blocks);
  }
  bool empty() const { return runs().empty(); }
  std::span<const Blocks> runs() const {
    if (!many_.empty()) return many_;
    return {&one_, one_.count > 0 ? std::size_t{1} : 0};
  }

 private:
  // Whether the last run does, with these.
  bool goesOn(Blocks blocks) {
    if (empty()) return false;
    Blocks& last = many_.empty() ? one_ : many_.back();
    const std::int32_t gap = blocks.first - last[last.count - 1];
    if (last.buffer != blocks.buffer || (last.count > 1 && last.stride != gap) ||
        (blocks.count > 1 && blocks.stride != gap))
      return false;
    last.stride = gap;
    last.count += blocks.count;
    return true;
  }
  void add(Blocks blocks);

  // Most lists have one run, for which no memory is allocated.
  Blocks one_{Buffer::input, 0, 0};
  std::vector<Blocks> many_;  // all, where there are several
};

// Block `block` of rank `rank`'s input: names a payload, and with it a size.
struct Payload {
  std::int32_t rank;
  std::int32_t block;

  auto operator<=>(const Payload&) const = default;
};

enum class OpKind : std::uint8_t {
  send,    // src blocks -> peer, as one message
  recv,    // one message from peer -> dst blocks
  copy,    // src blocks -> dst blocks, pairwise
  reduce,  // dst[j] = src[j] + src[n + j] + src[2n + j] + ..., n = blocks in dst, in this order
};

// Ops [first, first + count) of the same plan.
struct OpRange {
  std::int32_t first;
  std::int32_t count = 1;

  bool operator==(const OpRange&) const = default;
};

// Ranges of no ops are left out, and neighbours become one.
inline void append(std::vector<OpRange>& ranges, OpRange more) {
  if (more.count <= 0) return;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == more.first)
    ranges.back().count += more.count;
  else
    ranges.push_back(more);
}

// Entries [begin, begin + count) of one of the plan's pools.
struct PoolRange {
  std::int32_t begin = 0;
  std::int32_t count = 0;

  bool operator==(const PoolRange&) const = default;
};

struct Op {
  OpKind kind;
  std::int16_t lane = 0;
  std::int32_t step = 0;
  std::int32_t peer = -1;  // send and recv only
  PoolRange src = {};
  PoolRange dst = {};
  PoolRange deps = {};

  bool operator==(const Op&) const = default;
};

// Bounds on what a plan may ask of an executor: the number of lanes, and of messages from one rank
// to another on each.
inline constexpr int kMaxLanes = 4, kMaxMessagesPerLane = 4096;

struct Plan {
  std::vector<Op> ops;
  std::vector<Blocks> blockPool;  // what the ops' src and dst refer to
  std::vector<OpRange> depPool;   // what the ops' deps refer to
  // Scratch block i is as large as payload scratch[i].
  std::vector<Payload> scratch;
  int lanes = 1;  // the same on all ranks
  // Every block of the collective is cut into so many pieces, as equal as whole elements allow;
  // what the plan calls block b * pieces + i is piece i of the collective's block b. The same on
  // all ranks.
  int pieces = 1;
  // Some rank, perhaps another, keeps others' blocks in scratch, and must be told how large they
  // are where they differ. The same on all ranks.
  bool relays = false;

  std::span<const Blocks> src(const Op& op) const { return slice(blockPool, op.src); }
  std::span<const Blocks> dst(const Op& op) const { return slice(blockPool, op.dst); }
  std::span<const OpRange> deps(const Op& op) const { return slice(depPool, op.deps); }

  bool operator==(const Plan&) const = default;

 private:
  template <typename T>
  static std::span<const T> slice(const std::vector<T>& pool, PoolRange range) {
    return {pool.data() + range.begin, static_cast<size_t>(range.count)};
  }
};

// Number of blocks in a list of runs.
std::int64_t blockCount(std::span<const Blocks> runs);

// Where an op stands in the stream machine's order.
struct At {
  int lane = 0;
  int step = 0;
};

// Builds a plan op by op. Each function returns the op's index, to be named in later deps.
class PlanBuilder {
 public:
  // Ranges of no ops are left out.
  class Deps : public std::span<const OpRange> {
   public:
    Deps(std::initializer_list<OpRange> list) : span(list.begin(), list.size()) {}
    Deps(const std::vector<OpRange>& list) : span(list) {}
  };

  int send(At at, int peer, const BlockList& src, Deps deps = {});
  int recv(At at, int peer, const BlockList& dst);
  int copy(At at, const BlockList& src, const BlockList& dst, Deps deps = {});
  int reduce(At at, const BlockList& src, const BlockList& dst, Deps deps = {});
  // A new scratch block of the payload's size; returns its index.
  int scratch(Payload payload) {
    plan_.scratch.push_back(payload);
    return scratchCount() - 1;
  }

  // So many ops, of one list of blocks each or more, and blocks of scratch follow: memory is taken
  // at once.
  void reserve(std::size_t ops, std::size_t scratch = 0) {
    plan_.ops.reserve(plan_.ops.size() + ops);
    plan_.blockPool.reserve(plan_.blockPool.size() + ops);
    plan_.scratch.reserve(plan_.scratch.size() + scratch);
  }
  // There are so many lanes at least: other ranks use them.
  void lanes(int count) { plan_.lanes = std::max(plan_.lanes, count); }
  // See Plan::relays.
  void relay() { plan_.relays = true; }
  // The collective's blocks are cut into so many pieces.
  void cut(int pieces) { plan_.pieces = pieces; }

  int scratchCount() const { return static_cast<int>(plan_.scratch.size()); }
  int opCount() const { return static_cast<int>(plan_.ops.size()); }
  // All ops from index `first` on.
  OpRange since(int first) const { return {first, opCount() - first}; }
  Plan build() { return std::move(plan_); }

 private:
  int add(OpKind kind, At at, int peer, const BlockList& src, const BlockList& dst, Deps deps);
  PoolRange keep(const BlockList& list);

  Plan plan_;
};

// A number that is equal for equal plans, and differs for different ones but for one pair in 2^64.
// Another version of the library may compute another number.
std::uint64_t digestOf(const Plan& plan);
// The digest of several plans, in their order.
std::uint64_t digestOf(std::span<const Plan> plans);

// An algorithm throws this where it has nothing to offer; the message says why, for the user.
struct NotOffered : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// For people: out[0..6:2], and one line per op.
std::string describe(const Blocks& blocks);
std::string describe(const Plan& plan, int op);
void printText(std::ostream& out, const Plan& plan, int rank);
// The plans of all ranks (plans[r] is rank r's) as one Graphviz digraph: a cluster per node and in
// it one per rank, an edge per dependency and one per message. `only`: of this rank alone; below 0:
// of all.
void printDot(std::ostream& out, std::span<const Plan> plans, const Topology& topology,
              const std::string& title, int only = -1);

}  // namespace moeccl

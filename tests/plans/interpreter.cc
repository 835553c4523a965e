// Takes ops that may run one by one at random.
#include "tests/plans/interpreter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace moeccl::testing {
namespace {

// Stands for the bytes of a payload, and for how many there are.
struct Value {
  std::uint64_t bits;
  std::uint64_t size;
};

class Interpreter {
 public:
  Interpreter(const Promise& promise, std::span<const Plan> plans, Machine machine,
              std::mt19937& random)
      : promise_(promise),
        plans_(plans),
        machine_(machine),
        random_(random),
        pieces_(plans[0].pieces) {
    for (int rank = 0; rank < promise.ranks; ++rank) layOut(rank);
    for (int rank = 0; rank < promise.ranks; ++rank) group(rank);
    match();
  }

  // Once more, from the beginning and in another order.
  std::string run() {
    begin();
    std::vector<size_t> order(ops_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    size_t left = ops_.size();
    while (left > 0) {
      const size_t before = left;
      std::ranges::shuffle(order, random_);
      // Everything but a few late ones takes part in a round; nobody is left out of all.
      for (size_t op : order) {
        if (ops_[op].done || !canComplete(op) || (left < before && random_() % 2 == 0)) continue;
        const size_t completed = complete(op);
        if (!error_.empty()) return error_;
        left -= completed;
      }
      if (left == before) return stuck();
    }
    return compare();
  }

 private:
  using Cells = std::vector<size_t>;
  struct OpState {
    int rank, op;
    size_t group;
    Cells from, to;
    size_t partner = SIZE_MAX;
    bool done = false;
  };
  // Ops that start together.
  struct Group {
    size_t ops = 0;
    std::vector<size_t> after;
    size_t left = 0;
  };
  // One rank's blocks of one buffer.
  struct Region {
    size_t first, count;
  };

  const Op& at(size_t op) const { return plans_[ops_[op].rank].ops[ops_[op].op]; }
  std::string name(size_t op) const {
    return "rank " + std::to_string(ops_[op].rank) + " op " + std::to_string(ops_[op].op) + " (" +
           describe(plans_[ops_[op].rank], ops_[op].op) + ")";
  }

  // The value of a piece. Where payloads are summed, those of one number are equally large.
  Value valueOf(Payload piece) const {
    Payload whole{piece.rank, piece.block / pieces_};
    if (promise_.identity) whole = promise_.identity(whole);
    const auto rank = static_cast<std::uint64_t>(whole.rank);
    const auto block = static_cast<std::uint64_t>(whole.block * pieces_ + piece.block % pieces_);
    return {(rank * 1000003 + block + 1) * 0x9e3779b97f4a7c15u,
            promise_.uniform ? 1 : (promise_.sums ? 0 : rank * 100000) + block};
  }

  std::vector<Payload> expected(int rank, int block) const {
    std::vector<Payload> payloads;
    promise_.expected(rank, block / pieces_, payloads);
    for (Payload& payload : payloads) payload.block = payload.block * pieces_ + block % pieces_;
    return payloads;
  }

  // One that an output block is as large as; any, where nothing is to be written.
  Payload firstOf(int rank, int block) const {
    const std::vector<Payload> payloads = expected(rank, block);
    return payloads.empty() ? Payload{rank, block} : payloads[0];
  }

  // Where blocks are; what they are at first, others than inputs but for their bits; and what
  // outputs must be in the end.
  void layOut(int rank) {
    for (Buffer buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
      const Region region{first_.size(), blocksIn(rank, buffer)};
      for (int block = 0; block < static_cast<int>(region.count); ++block)
        first_.push_back(buffer == Buffer::input    ? valueOf({rank, block})
                         : buffer == Buffer::output ? valueOf(firstOf(rank, block))
                                                    : valueOf(plans_[rank].scratch[block]));
      regions_.push_back(region);
    }
    std::vector<std::uint64_t>& wanted = wanted_.emplace_back();
    for (int block = 0; block < static_cast<int>(blocksIn(rank, Buffer::output)); ++block) {
      wanted.push_back(0);
      for (Payload payload : expected(rank, block)) wanted.back() += valueOf(payload).bits;
    }
  }

  size_t blocksIn(int rank, Buffer buffer) const {
    if (buffer == Buffer::scratch) return plans_[rank].scratch.size();
    return static_cast<size_t>(
        (buffer == Buffer::input ? promise_.inputBlocks(rank) : promise_.outputBlocks(rank)) *
        pieces_);
  }

  const Region& region(int rank, Buffer buffer) const {
    return regions_[3 * static_cast<size_t>(rank) + static_cast<size_t>(buffer)];
  }

  Cells cells(int rank, std::span<const Blocks> runs) const {
    Cells cells;
    for (const Blocks& run : runs)
      for (int i = 0; i < run.count; ++i) {
        const Region& blocks = region(rank, run.buffer);
        const auto block = static_cast<size_t>(run[i]);
        if (block >= blocks.count) throw std::out_of_range("there is no " + describe(run));
        cells.push_back(blocks.first + block);
      }
    return cells;
  }

  void begin() {
    memory_ = first_;
    for (int rank = 0; rank < promise_.ranks; ++rank)
      for (Buffer buffer : {Buffer::output, Buffer::scratch}) {
        const Region& blocks = region(rank, buffer);
        for (size_t cell = blocks.first; cell < blocks.first + blocks.count; ++cell)
          memory_[cell].bits = random_() * 0x100000001u | 1u;
      }
    for (OpState& op : ops_) op.done = false;
    for (Group& group : groups_) group.left = group.ops;
  }

  void group(int rank) {
    const Plan& plan = plans_[rank];
    const size_t first = ops_.size();
    std::map<std::pair<int, int>, size_t> byStep;
    for (size_t i = 0; i < plan.ops.size(); ++i) {
      size_t group = groups_.size();
      if (machine_ == Machine::byStreams)
        group = byStep.try_emplace({plan.ops[i].lane, plan.ops[i].step}, group).first->second;
      if (group == groups_.size()) groups_.emplace_back();
      ++groups_[group].ops;
      ops_.push_back({.rank = rank,
                      .op = static_cast<int>(i),
                      .group = group,
                      .from = cells(rank, plan.src(plan.ops[i])),
                      .to = cells(rank, plan.dst(plan.ops[i]))});
    }
    for (auto step = byStep.begin(); step != byStep.end(); ++step)
      if (step != byStep.begin() && std::prev(step)->first.first == step->first.first)
        groups_[step->second].after.push_back(std::prev(step)->second);
    for (size_t i = 0; i < plan.ops.size(); ++i)
      for (OpRange range : plan.deps(plan.ops[i]))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (machine_ == Machine::byDependencies || plan.ops[d].lane != plan.ops[i].lane)
            groups_[ops_[first + i].group].after.push_back(ops_[first + d].group);
  }

  void match() {
    // from, to, lane -> sends and receives in the order in which they match
    std::map<std::tuple<int, int, int>, std::array<std::vector<size_t>, 2>> streams;
    for (size_t op = 0; op < ops_.size(); ++op) {
      const Op& what = at(op);
      if (what.kind == OpKind::send)
        streams[{ops_[op].rank, what.peer, what.lane}][0].push_back(op);
      if (what.kind == OpKind::recv)
        streams[{what.peer, ops_[op].rank, what.lane}][1].push_back(op);
    }
    for (auto& [key, ends] : streams) {
      if (machine_ == Machine::byStreams)
        for (std::vector<size_t>& end : ends)
          std::ranges::stable_sort(end, {}, [&](size_t op) { return at(op).step; });
      for (size_t i = 0; i < std::min(ends[0].size(), ends[1].size()); ++i) {
        ops_[ends[0][i]].partner = ends[1][i];
        ops_[ends[1][i]].partner = ends[0][i];
      }
    }
  }

  bool started(size_t op) const {
    return std::ranges::all_of(groups_[ops_[op].group].after,
                               [&](size_t group) { return groups_[group].left == 0; });
  }

  bool canComplete(size_t op) const {
    const OpKind kind = at(op).kind;
    if (kind == OpKind::copy || kind == OpKind::reduce) return started(op);
    return ops_[op].partner != SIZE_MAX && started(op) && started(ops_[op].partner);
  }

  size_t complete(size_t op) {
    if (at(op).kind == OpKind::send) op = ops_[op].partner;
    const size_t send = at(op).kind == OpKind::recv ? ops_[op].partner : op;
    store(op, ops_[send].from, ops_[op].to);
    finish(op);
    if (send == op) return 1;
    finish(send);
    return 2;
  }

  void finish(size_t op) {
    ops_[op].done = true;
    --groups_[ops_[op].group].left;
  }

  void store(size_t op, const Cells& from, const Cells& to) {
    if (from.size() % to.size() != 0) {
      error_ = name(op) + " moves another number of blocks";
      return;
    }
    for (size_t j = 0; j < to.size(); ++j) {
      Value& target = memory_[to[j]];
      std::uint64_t sum = 0;
      for (size_t i = j; i < from.size(); i += to.size()) {
        const Value& source = memory_[from[i]];
        if (source.size != target.size) error_ = name(op) + " moves a block of another size";
        sum += source.bits;
      }
      target.bits = sum;
    }
  }

  std::string stuck() const {
    std::string text = "stuck:";
    for (size_t op = 0; op < ops_.size(); ++op)
      if (!ops_[op].done) text.append(" ").append(name(op));
    return text;
  }

  std::string compare() const {
    for (int rank = 0; rank < promise_.ranks; ++rank)
      for (size_t block = 0; block < wanted_[rank].size(); ++block)
        if (!expected(rank, static_cast<int>(block)).empty() &&
            memory_[region(rank, Buffer::output).first + block].bits != wanted_[rank][block])
          return "rank " + std::to_string(rank) + " ends with a wrong " +
                 describe(output(static_cast<int>(block)));
    return "";
  }

  const Promise promise_;
  const std::span<const Plan> plans_;
  const Machine machine_;
  std::mt19937& random_;
  const int pieces_;
  std::vector<OpState> ops_;
  std::vector<Group> groups_;
  std::vector<Region> regions_;  // by rank, then buffer
  std::vector<Value> first_, memory_;
  std::vector<std::vector<std::uint64_t>> wanted_;  // by rank, then output
  std::string error_;
};

}  // namespace

std::string interpret(const Promise& promise, std::span<const Plan> plans, Machine machine,
                      std::mt19937& random, int times) {
  Interpreter interpreter(promise, plans, machine, random);
  std::string wrong;
  for (int i = 0; i < times && wrong.empty(); ++i) wrong = interpreter.run();
  return wrong;
}

}  // namespace moeccl::testing

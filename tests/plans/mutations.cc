// Changes one op, block or dependence at a time.
#include "tests/plans/mutations.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace moeccl::testing {
namespace {

// The blocks of a list, each by itself.
std::vector<Blocks> single(std::span<const Blocks> runs) {
  std::vector<Blocks> blocks;
  for (const Blocks& run : runs)
    for (int i = 0; i < run.count; ++i) blocks.push_back({run.buffer, run[i]});
  return blocks;
}

std::vector<int> single(std::span<const OpRange> ranges) {
  std::vector<int> ops;
  for (OpRange range : ranges)
    for (int d = range.first; d < range.first + range.count; ++d) ops.push_back(d);
  return ops;
}

PoolRange keep(Plan& plan, const std::vector<Blocks>& blocks) {
  BlockList list;
  for (const Blocks& block : blocks) list.append(block);
  const PoolRange range{static_cast<int>(plan.blockPool.size()),
                        static_cast<int>(list.runs().size())};
  plan.blockPool.insert(plan.blockPool.end(), list.runs().begin(), list.runs().end());
  return range;
}

PoolRange keep(Plan& plan, const std::vector<int>& deps) {
  const PoolRange range{static_cast<int>(plan.depPool.size()), static_cast<int>(deps.size())};
  for (int dep : deps) plan.depPool.push_back({dep});
  return range;
}

// One of an op's two lists.
using List = PoolRange Op::*;

class Mutations {
 public:
  Mutations(const Promise& promise, int rank, const Plan& plan,
            const std::function<void(const Mutant&)>& seen)
      : promise_(promise), rank_(rank), plan_(plan), seen_(seen) {}

  void all() {
    for (op_ = 0; op_ < static_cast<int>(plan_.ops.size()); ++op_) {
      dropOp();
      repeatOp();
      retarget();
      for (List list : {&Op::src, &Op::dst}) changeBlocks(list);
      dropDependencies();
      changeLane();
      for (int change : {-1, 1}) changeStep(change);
    }
    op_ = -1;
    resizeScratch();
  }

 private:
  const Op& op() const { return plan_.ops[op_]; }

  // A copy of the plan in which one op has been edited.
  template <typename Edit>
  void mutate(std::string_view kind, const Edit& edit) {
    Plan plan = plan_;
    edit(plan, plan.ops[op_]);
    seen_({kind, rank_, op_, std::move(plan)});
  }

  void dropOp() {
    Plan plan = plan_;
    plan.ops.erase(plan.ops.begin() + op_);
    for (Op& other : plan.ops) {
      std::vector<int> deps = single(plan.deps(other));
      std::erase(deps, op_);
      for (int& dep : deps) dep -= dep > op_;
      other.deps = keep(plan, deps);
    }
    seen_({"drop op", rank_, op_, std::move(plan)});
  }

  void repeatOp() {
    mutate("repeat op", [&](Plan& plan, Op& op) { plan.ops.push_back(Op(op)); });
  }

  void retarget() {
    if (op().peer < 0) return;
    for (int peer = 0; peer < promise_.ranks; ++peer)
      if (peer != op().peer) mutate("retarget peer", [&](Plan&, Op& op) { op.peer = peer; });
  }

  int blocksIn(Buffer buffer) const {
    if (buffer == Buffer::input) return promise_.inputBlocks(rank_) * plan_.pieces;
    if (buffer == Buffer::output) return promise_.outputBlocks(rank_) * plan_.pieces;
    return static_cast<int>(plan_.scratch.size());
  }

  void changeBlocks(List list) {
    const std::vector<Blocks> blocks =
        single(std::span(plan_.blockPool).subspan((op().*list).begin, (op().*list).count));
    const auto replace = [&](std::string_view kind, const std::vector<Blocks>& others) {
      mutate(kind, [&](Plan& plan, Op& op) { op.*list = keep(plan, others); });
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::vector<Blocks> others = blocks;
      for (int block = 0; block < blocksIn(blocks[i].buffer); ++block)
        if (block != blocks[i].first) {
          others[i].first = block;
          replace("replace block", others);
        }
      for (Buffer buffer : {Buffer::input, Buffer::output, Buffer::scratch})
        if (buffer != blocks[i].buffer && blocks[i].first < blocksIn(buffer)) {
          others[i] = {buffer, blocks[i].first};
          replace("change buffer", others);
        }
      for (size_t j = i + 1; j < blocks.size(); ++j)
        if (!(blocks[i] == blocks[j])) {
          others = blocks;
          std::swap(others[i], others[j]);
          replace("swap blocks", others);
        }
      others = blocks;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      replace("drop block", others);
    }
  }

  void dropDependencies() {
    const std::vector<int> deps = single(plan_.deps(op()));
    for (size_t i = 0; i < deps.size(); ++i) {
      std::vector<int> fewer = deps;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      mutate("drop dependency", [&](Plan& plan, Op& op) { op.deps = keep(plan, fewer); });
    }
  }

  // To every other lane, and to a new one.
  void changeLane() {
    for (int lane = 0; lane <= plan_.lanes; ++lane)
      if (lane != op().lane)
        mutate("change lane", [&](Plan& plan, Op& op) {
          op.lane = static_cast<std::int16_t>(lane);
          plan.lanes = std::max(plan.lanes, lane + 1);
        });
  }

  void changeStep(int change) {
    if (op().step + change < 0) return;
    mutate(change < 0 ? "earlier step" : "later step", [&](Plan&, Op& op) { op.step += change; });
  }

  void resizeScratch() {
    for (size_t i = 0; i < plan_.scratch.size(); ++i)
      for (int source = 0; source < promise_.ranks; ++source)
        for (int block = 0; block < promise_.inputBlocks(source) * plan_.pieces; ++block) {
          const Payload size{source, block};
          if (size == plan_.scratch[i]) continue;
          Plan plan = plan_;
          plan.scratch[i] = size;
          seen_({"resize scratch", rank_, -1, std::move(plan)});
        }
  }

  const Promise& promise_;
  const int rank_;
  const Plan& plan_;
  const std::function<void(const Mutant&)>& seen_;
  int op_ = 0;
};

}  // namespace

void forEachMutant(const Promise& promise, int rank, const Plan& plan,
                   const std::function<void(const Mutant&)>& seen) {
  Mutations(promise, rank, plan, seen).all();
}

}  // namespace moeccl::testing

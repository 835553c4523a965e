// One call of a collective, as the caller made it. A value; it may wait in a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/extents.h"
#include "moeccl/moeccl.h"
#include "src/comm/plan_cache.h"
#include "src/exec/message_run.h"

namespace moeccl {

struct Call {
  AlgorithmChoice choice;  // its collective, and how; no algorithm: `messages`
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t blockBytes =
      0;  // where all blocks are equally large; else all of them, where all ranks know that
  moecclDataType_t datatype = moecclUint8;
  moecclRedOp_t op = moecclSum;
  // Where they are not (allToAllv, allGatherv, reduceScatterv): by block.
  std::vector<Extent> inputTable = {}, outputTable = {};
  // For allToAllv: no block has more than blockBytes bytes, on any rank.
  bool bounded = false;
  // A plan of the caller's instead of the choice's. Its blocks are as the tables say, or all of
  // blockBytes bytes.
  std::shared_ptr<CachedPlan> own = {};
  // Sums are weighted by inputWeights and scratchWeights. Blocks of the output in `zeros` become
  // zeros. If weighing.rowBytes is not 0, the input is made of `weighing` (placement.h). `keep`
  // owns what they refer to.
  std::span<const float> inputWeights = {}, scratchWeights = {};
  std::span<const std::int32_t> zeros = {};
  WeighedRows weighing = {};
  std::shared_ptr<const void> keep = {};
  // What the messages hold where others' blocks pass by relays, which only this knows; `keep` owns
  // it.
  Content* content = nullptr;
  // For allGatherv and reduceScatterv: the bytes of each rank's block.
  std::vector<std::size_t> rankBytes = {};
  // The function that the caller has called, if it is another one. Ranks must have it alike too.
  std::shared_ptr<const PlanName> inside = {};
  // Sends and receives that begin at once. Each send of this rank to itself has its receive among
  // them.
  std::vector<Message> messages = {};
  MessageOwner kind = MessageOwner::caller;
  // On hosts: `prepare` makes the input as the call begins. `finish` makes of the output what the
  // caller wants, once it is complete. They neither throw nor wait; `keep` owns what they refer to.
  std::function<void()> prepare = {}, finish = {};
  // How long it may not advance; negative: for ever.
  std::int64_t timeoutMs = -1;

  // Whether the call runs a plan, the choice's or its own; else it is of messages.
  bool isCollective() const { return choice.algorithm != nullptr || own != nullptr; }
  // The collective of the choice, which the call must have.
  Collective collective() const { return choice.algorithm->collective; }
  bool sized() const { return own ? !inputTable.empty() : collective() == Collective::allToAllv; }
};

// The output of an average on `rank`, which holds sums when the plan has run; none of other calls.
std::span<std::byte> sumsToDivide(const Call& call, int rank);

// What all ranks of a call must have alike.
struct CallSignature {
  const AlgorithmChoice* choice = nullptr;
  std::shared_ptr<const PlanName> own;  // instead of a choice
  std::uint64_t what = 0;               // of either
  std::size_t blockBytes = 0;           // 0 where blocks may differ
  std::size_t tokens = 0;               // that each message has room for; 0: that is not said
  moecclDataType_t datatype = moecclUint8;
  moecclRedOp_t op = moecclSum;
  std::shared_ptr<const PlanName> inside;

  CallSignature() = default;
  CallSignature(const CachedPlan& plan, const Call& call);
  CallSignature(std::shared_ptr<const PlanName> own, std::size_t tokens);
  // Equal on ranks that call the same.
  std::uint64_t digest() const;
  // "allreduce (linear) of 4 x float32, max (inside a split)"
  std::string text() const;

 private:
  std::string ownText() const;  // without what it is inside of
};

std::uint64_t digestOf(const AlgorithmChoice& choice);

// "float32"
std::string_view typeName(moecclDataType_t datatype);

}  // namespace moeccl

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
  // Of allToAllv: no block has more than blockBytes bytes, on any rank.
  bool bounded = false;
  // A plan of the caller's instead of the choice's. Its blocks are as the tables say, or all of
  // blockBytes bytes.
  std::shared_ptr<CachedPlan> own = {};
  // Sums are weighted by the first two; the next become zeros; of the last, where rowBytes is not
  // 0, the input is made (placement.h). `keep` owns what they refer to.
  std::span<const float> inputWeights = {}, scratchWeights = {};
  std::span<const std::int32_t> zeros = {};
  WeighedRows weighing = {};
  std::shared_ptr<const void> keep = {};
  // Where others' blocks pass by relays: what the messages hold, which only this knows; `keep` owns
  // it.
  Content* content = nullptr;
  // Of allGatherv and reduceScatterv: the bytes of each rank's block.
  std::vector<std::size_t> rankBytes = {};
  // What the caller has called, where that is another function, which ranks must have alike too.
  std::shared_ptr<const PlanName> inside = {};
  // Of several sends and receives that begin at once. Each of this rank to itself has its receive
  // among them.
  std::vector<Message> messages = {};
  MessageOwner kind = MessageOwner::caller;
  // On hosts: makes the input, as the call begins; and makes of the output what the caller wants,
  // once it is complete. They neither throw nor wait; `keep` owns what they refer to.
  std::function<void()> prepare = {}, finish = {};
  // How long it may not advance; negative: for ever.
  std::int64_t timeoutMs = -1;

  // Of a plan, whose ever; else of messages.
  bool isCollective() const { return choice.algorithm != nullptr || own != nullptr; }
  // Of a choice.
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

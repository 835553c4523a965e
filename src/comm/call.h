// One call on a communicator, as the caller made it: of a collective, of a route, or of messages. A
// value; it may wait in a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "algorithms/extents.h"
#include "moeccl/moeccl.h"
#include "src/comm/plan_cache.h"
#include "src/exec/message_run.h"

namespace moeccl {

// What a plan runs on, whoever it is of.
struct PlannedCall {
  const void* input = nullptr;
  void* output = nullptr;
  // Bytes of each block where all are equally large; else of all of them, where all ranks know
  // that.
  std::size_t blockBytes = 0;
  moecclDataType_t datatype = moecclUint8;
  // By block, where they are not (allToAllv, allGatherv, reduceScatterv).
  std::vector<Extent> inputTable = {}, outputTable = {};
  // Writes and reads messages that hold others' blocks, since it alone knows what is in them;
  // `keep` owns it.
  Content* content = nullptr;
  std::shared_ptr<const void> keep = {};
  // The function that the caller has called, if it is another one. Ranks must have it alike too.
  std::shared_ptr<const PlanName> inside = {};
};

struct CollectiveCall : PlannedCall {
  Collective collective = Collective::allToAll;
  // Its grid, experts and root are the caller's. No algorithm: it is to be chosen
  // (Communicator::decide).
  AlgorithmChoice choice = {};
  moecclRedOp_t op = moecclSum;
  // For allGatherv and reduceScatterv: the bytes of each rank's block.
  std::vector<std::size_t> rankBytes = {};
  // For allToAllv: no block has more than blockBytes bytes, on any rank. No rank has more than
  // meanBytes bytes in the mean of its blocks.
  bool bounded = false;
  std::size_t meanBytes = 0;
};

// A call of a route, by a plan of its own. Its blocks are as the tables say, or all of blockBytes
// bytes.
struct RowsCall : PlannedCall {
  std::shared_ptr<CachedPlan> plan = {};
  // Sums are weighted by inputWeights and scratchWeights. Blocks of the output in `zeros` become
  // zeros. If weighing.rowBytes is not 0, the input is made of `weighing` (placement.h). `keep`
  // owns what they refer to.
  std::span<const float> inputWeights = {}, scratchWeights = {};
  std::span<const std::int32_t> zeros = {};
  WeighedRows weighing = {};
  // On hosts: `prepare` makes the input as the call begins. `finish` makes of the output what the
  // caller wants, once it is complete. They neither throw nor wait; `keep` owns what they refer to.
  std::function<void()> prepare = {}, finish = {};
};

// Sends and receives that begin at once. Each send of this rank to itself has its receive among
// them.
struct MessagesCall {
  std::vector<Message> messages = {};
  MessageOwner kind = MessageOwner::caller;
};

struct Call {
  std::variant<MessagesCall, CollectiveCall, RowsCall> what = {};
  // How long it may not advance; negative: for ever. Communicator::launch sets it.
  std::int64_t timeoutMs = -1;

  // nullptr where the call is of another kind.
  const MessagesCall* messages() const { return std::get_if<MessagesCall>(&what); }
  const CollectiveCall* collective() const { return std::get_if<CollectiveCall>(&what); }
  const RowsCall* rows() const { return std::get_if<RowsCall>(&what); }
  // The part that a collective and rows have; nullptr for messages.
  const PlannedCall* planned() const;
};

// Whether blocks differ in size so that only sender and receiver know how large one is.
bool isSized(const Call& call);

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

// Runs of a plan on a GPU, over NCCL. A run is enqueued whole and at once: nothing waits for the
// GPU, so streams can be captured into CUDA graphs.
//
//   a step      one launch each, where there is something to do: copies and the packing of messages
//               whose blocks do not follow one another; one group of sends and receives; unpacking;
//               then a launch for each reduction of neighbouring blocks
//   a message   one send and receive; of several large blocks one for each, where they lie
//   a lane      a stream, and an NCCL communicator. One lane is the caller's stream, the others
//               fork from it by an event and join it again at the end
//   a dep       between lanes: an event behind the step that holds what is waited for
//   priority    lanes that others wait for have streams of the highest priority, so that what fills
//               in (the all-gather of SAA) does not hold up what is critical
//
// Why it cannot deadlock. The kernel of a group keeps its place on the GPU until it has met those
// of all its peers. What it waits for must therefore be able to start meanwhile:
//   - Inside a group NCCL sees to that: its operations progress together.
//   - Between groups, steps start in the order of their lane and after the events that they wait
//     for. src/verify proves of every plan that this is enough (by_streams.cc).
//   - Streams may share a queue of the hardware, or find it full. Then a step also waits for what
//     was launched before it on another lane. All ranks launch in the order of
//     algorithms/launch_order.h, in which, as src/verify proves as well (by_launches.cc), every
//     step may wait for all before it; and whatever subset of these waits happens, happens within
//     an order that is free of circles.
//   - What is launched later may be there first, when an event held up what came before. It must
//     then leave room for the other: for one kernel of NCCL's per lane, at most kMaxLanes. With
//     NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26) NCCL itself keeps later kernels from overtaking.
//   - Calls of one communicator wait for each other (NcclLanes). Those of several that share a GPU
//     must come in the same order on all ranks, which is NCCL's own condition.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/launch_order.h"
#include "src/exec/nccl_lanes.h"
#include "src/exec/placement.h"
#include "src/exec/prepared_plan.h"

namespace moeccl {

class NcclRun {
 public:
  // Throws std::invalid_argument when the steps of the plan's lanes wait for each other in a
  // circle.
  explicit NcclRun(std::shared_ptr<const PreparedPlan> plan);
  virtual ~NcclRun() = default;
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;

  const PreparedPlan& prepared() const { return *plan_; }

  // Enqueues the plan on `stream`. Throws Error; what has been enqueued by then may never end,
  // except where NcclLanes::begin() has refused. Buffers belong to the run until the stream has
  // come so far.
  void enqueue(NcclLanes& lanes, const Operands& operands, Gpu::Stream stream);

 protected:
  // Places all messages; returns the bytes of arena that it takes.
  virtual std::size_t layOut(const Operands& operands);
  // The arena is there, and nothing has been enqueued yet.
  virtual void prepare(NcclLanes&, Gpu::Stream) {}
  // What a launch does beside its messages.
  virtual void copyAndPack(Gpu& gpu, std::size_t launch, Gpu::Stream stream);
  virtual void unpack(Gpu& gpu, std::size_t launch, Gpu::Stream stream);
  virtual void reduce(Gpu& gpu, std::size_t launch, Gpu::Stream stream);
  const LaunchOrder& order() const { return order_; }
  const Op& op(std::int32_t index) const {
    return plan_->plan().ops[static_cast<std::size_t>(index)];
  }
  std::span<const Blocks> blocksOf(const Op& message) const {
    return message.kind == OpKind::send ? plan_->plan().src(message) : plan_->plan().dst(message);
  }

  // These are of the call that is being enqueued:
  Placement placement_;
  std::vector<MessagePlace> places_;  // by op

 private:
  using LaneStreams = std::array<Gpu::Stream, kMaxLanes>;

  void dropRepeatedWaits();
  void findLanes();
  MessagePlace placeOf(std::span<const Blocks> runs, std::size_t* arena) const;
  void fork(NcclLanes& lanes, Gpu::Stream stream);
  void join(NcclLanes& lanes, Gpu::Stream stream);
  void launch(NcclLanes& lanes, std::size_t index);
  void exchange(NcclLanes& lanes, const Launch& launch, Gpu::Stream stream);
  void reduce(Gpu& gpu, const Op& op, Gpu::Stream stream);
  void launchCopies(Gpu& gpu, Gpu::Stream stream);

  const std::shared_ptr<const PreparedPlan> plan_;
  LaunchOrder order_;                // `after` without what earlier steps of the lane wait for
  std::vector<std::int32_t> event_;  // by launch: which it records, -1: none
  int events_ = 0;                   // of launches; one for the fork and one per lane follow
  std::array<bool, kMaxLanes> used_{}, urgent_{};
  int callers_ = -1;  // the lane that is the caller's stream, -1: none

  // These are of the call that is being enqueued:
  LaneStreams streams_{};
  std::vector<BlockCopy> copies_;
  std::vector<const std::byte*> sources_;  // of the reduction at hand
};

}  // namespace moeccl

// Runs of a plan on a GPU whose blocks are rows of one size, thousands of them: token routing. What
// each launch copies and adds up are lists in the GPU's memory (kernels/row_lists.h), copied there
// by the first run, so that a launch has one kernel of each kind, whatever its blocks.
//
// Scattered rows of a message are packed behind the scratch, as if they were more of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/row_lists.h"
#include "src/exec/nccl_run.h"
#include "src/exec/row_memory.h"

namespace moeccl {

class RowRun final : public NcclRun {
 public:
  // For calls with these weights and zeros, or without weights. The device is the thread's current
  // one. Throws Error.
  RowRun(std::shared_ptr<const PreparedPlan> plan, std::shared_ptr<RowMemory> memory,
         const Operands& operands);

  // Whether its lists have what the call needs.
  bool serves(const Operands& operands) const { return weighted_ || !operands.weighted(); }

 protected:
  std::size_t layOut(const Operands& operands) override;
  void prepare(NcclLanes& lanes, Gpu::Stream stream) override;
  void copyAndPack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) override;
  void unpack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) override;
  void reduce(Gpu& gpu, std::size_t launch, Gpu::Stream stream) override;

 private:
  struct Range {
    std::int64_t first, count;
  };
  struct Lists;

  void addMessage(std::int32_t op, std::int32_t* packed);
  void list(Lists& lists, const Operands& operands);
  void addCopies(const Op& op, Lists& lists) const;
  void addSums(const Op& op, Lists& lists) const;
  void copyRows(Gpu& gpu, Range copies, Gpu::Stream stream) const;
  void addRows(Gpu& gpu, Range sums, Gpu::Stream stream) const;
  RowMatrices matrices() const;

  const std::shared_ptr<RowMemory> memory_;
  std::shared_ptr<RowMemory::Piece> piece_;
  bool weighted_ = false, isCopied_ = false;
  std::size_t listBytes_ = 0;
  // In the GPU's memory:
  RowCopies copies_{};
  RowSums sums_{};
  RowWeights weights_;
  const float* weighing_ = nullptr;
  // The parts of these lists, by launch:
  std::vector<Range> packs_, unpacks_, launchSums_;
  Range zeros_{0, 0};

  // By op: where a message's rows are, from which one on, and how many.
  struct Rows {
    Buffer buffer = Buffer::scratch;
    std::int32_t first = 0, count = 0;
    bool staged = false;
  };
  std::vector<Rows> messages_;
  std::size_t arenaRows_ = 0;
  std::size_t inputBegin_ = 0;  // in the arena, of an input that is made
};

}  // namespace moeccl

// Lists the rows that each launch copies and adds up, and lays all lists out in one piece of
// memory.
#include "src/exec/row_run.h"

#include <cstring>
#include <limits>
#include <utility>

namespace moeccl {
namespace {

bool isMessage(const Op& op) { return op.kind == OpKind::send || op.kind == OpKind::recv; }

RowAt rowAt(Buffer buffer, std::int32_t row) { return {static_cast<std::int32_t>(buffer), row}; }

void append(std::span<const Blocks> runs, std::vector<RowAt>& rows) {
  for (const Blocks& run : runs)
    for (std::int32_t i = 0; i < run.count; ++i) rows.push_back(rowAt(run.buffer, run[i]));
}

// Whether the rows follow one another.
bool contiguous(std::span<const Blocks> runs) {
  std::int32_t next = runs[0].first;
  for (const Blocks& run : runs) {
    if (run.buffer != runs[0].buffer || run.first != next || (run.count > 1 && run.stride != 1))
      return false;
    next += run.count;
  }
  return true;
}

}  // namespace

// The lists as they are made, on the host.
struct RowRun::Lists {
  std::vector<RowAt> from, to;
  std::vector<std::int32_t> begins{0};
  std::vector<RowAt> terms, sums;

  Range copiesSince(std::int64_t first) const { return {first, std::ssize(from) - first}; }
  Range sumsSince(std::int64_t first) const { return {first, std::ssize(sums) - first}; }
};

RowRun::RowRun(std::shared_ptr<const PreparedPlan> plan, std::shared_ptr<RowMemory> memory,
               const Operands& operands)
    : NcclRun(std::move(plan)), memory_(std::move(memory)), weighted_(operands.weighted()) {
  const Plan& what = prepared().plan();
  messages_.resize(what.ops.size());
  auto packed = static_cast<std::int32_t>(what.scratch.size());
  for (std::size_t i = 0; i < what.ops.size(); ++i)
    if (isMessage(what.ops[i])) addMessage(static_cast<std::int32_t>(i), &packed);
  arenaRows_ = static_cast<std::size_t>(packed);

  Lists lists;
  list(lists, operands);
  const std::span<const float> weighing =
      operands.weighing == nullptr ? std::span<const float>{}
                                   : std::span(operands.weighing->weights,
                                               static_cast<std::size_t>(operands.weighing->count));
  listBytes_ = (2 * lists.from.size() + lists.terms.size() + lists.sums.size()) * sizeof(RowAt) +
               lists.begins.size() * sizeof(std::int32_t) +
               (operands.inputWeights.size() + operands.scratchWeights.size() + weighing.size()) *
                   sizeof(float);
  piece_ = memory_->take(listBytes_, true);
  std::size_t at = 0;
  const auto put = [&]<typename T>(std::span<const T> values) {
    if (!values.empty()) std::memcpy(piece_->host + at, values.data(), values.size_bytes());
    return reinterpret_cast<const T*>(piece_->device + std::exchange(at, at + values.size_bytes()));
  };
  copies_.from = put(std::span<const RowAt>(lists.from));
  copies_.to = put(std::span<const RowAt>(lists.to));
  sums_.begins = put(std::span<const std::int32_t>(lists.begins));
  sums_.terms = put(std::span<const RowAt>(lists.terms));
  sums_.to = put(std::span<const RowAt>(lists.sums));
  const auto weigh = [&](Buffer buffer, std::span<const float> weights) {
    weights_.of[static_cast<std::size_t>(buffer)] = put(weights);
    weights_.counts[static_cast<std::size_t>(buffer)] = std::ssize(weights);
  };
  weigh(Buffer::input, operands.inputWeights);
  weigh(Buffer::scratch, operands.scratchWeights);
  weighing_ = put(weighing);
}

void RowRun::addMessage(std::int32_t index, std::int32_t* packed) {
  const std::span<const Blocks> runs = blocksOf(op(index));
  const std::int64_t count = blockCount(runs);
  Rows& rows = messages_[static_cast<std::size_t>(index)];
  rows = {runs[0].buffer, runs[0].first, static_cast<std::int32_t>(count), !contiguous(runs)};
  if (!rows.staged) return;
  if (count > std::numeric_limits<std::int32_t>::max() - *packed)
    throw Error(moecclInvalidUsage,
                "a rank has more than 2^31 rows of others to pack; route fewer "
                "tokens at once");
  rows.buffer = Buffer::scratch;
  rows.first = std::exchange(*packed, *packed + static_cast<std::int32_t>(count));
}

void RowRun::list(Lists& lists, const Operands& operands) {
  const auto packed = [&](std::int32_t i, std::vector<RowAt>& rows) {
    const Rows& message = messages_[static_cast<std::size_t>(i)];
    for (std::int32_t row = 0; row < message.count; ++row)
      rows.push_back(rowAt(Buffer::scratch, message.first + row));
  };
  for (const Launch& launch : order().launches) {
    std::int64_t first = std::ssize(lists.from);
    const std::int64_t firstSum = std::ssize(lists.sums);
    for (const std::int32_t i : order().opsOf(launch)) {
      if (op(i).kind == OpKind::copy) addCopies(op(i), lists);
      if (op(i).kind == OpKind::reduce) addSums(op(i), lists);
      if (op(i).kind != OpKind::send || !messages_[static_cast<std::size_t>(i)].staged) continue;
      append(blocksOf(op(i)), lists.from);
      packed(i, lists.to);
    }
    packs_.push_back(lists.copiesSince(first));
    first = std::ssize(lists.from);
    for (const std::int32_t i : order().opsOf(launch)) {
      if (op(i).kind != OpKind::recv || !messages_[static_cast<std::size_t>(i)].staged) continue;
      packed(i, lists.from);
      append(blocksOf(op(i)), lists.to);
    }
    unpacks_.push_back(lists.copiesSince(first));
    launchSums_.push_back(lists.sumsSince(firstSum));
  }
  const std::int64_t first = std::ssize(lists.sums);
  for (const std::int32_t row : operands.zeros) lists.sums.push_back(rowAt(Buffer::output, row));
  lists.begins.resize(lists.sums.size() + 1, lists.begins.back());
  zeros_ = lists.sumsSince(first);
}

void RowRun::addCopies(const Op& op, Lists& lists) const {
  append(prepared().plan().src(op), lists.from);
  append(prepared().plan().dst(op), lists.to);
}

void RowRun::addSums(const Op& op, Lists& lists) const {
  std::vector<RowAt> from;
  append(prepared().plan().src(op), from);
  const std::size_t first = lists.sums.size();
  append(prepared().plan().dst(op), lists.sums);
  const std::size_t sums = lists.sums.size() - first;
  for (std::size_t sum = 0; sum < sums; ++sum) {
    for (std::size_t term = sum; term < from.size(); term += sums)
      lists.terms.push_back(from[term]);
    lists.begins.push_back(static_cast<std::int32_t>(lists.terms.size()));
  }
}

std::size_t RowRun::layOut(const Operands& operands) {
  placement_.operands = operands;
  const std::size_t bytes = operands.inputExtents[0].bytes;
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    const Rows& rows = messages_[i];
    places_[i] = {rows.staged, rows.buffer, static_cast<std::size_t>(rows.first) * bytes,
                  static_cast<std::size_t>(rows.count) * bytes};
  }
  inputBegin_ = Placement::aligned(arenaRows_ * bytes);
  if (operands.weighing == nullptr) return inputBegin_;
  return inputBegin_ + static_cast<std::size_t>(operands.weighing->count) * bytes;
}

RowMatrices RowRun::matrices() const {
  const Operands& operands = placement_.operands;
  return {{const_cast<std::byte*>(operands.input), operands.output, placement_.arena},
          operands.inputExtents[0].bytes};
}

void RowRun::prepare(NcclLanes& lanes, Gpu::Stream stream) {
  if (!std::exchange(isCopied_, true)) memory_->copy(*piece_, listBytes_, stream);
  if (lanes.isCapturing()) lanes.gpu().keepInGraph(stream, piece_);
  if (const WeighedRows* const rows = placement_.operands.weighing; rows != nullptr) {
    std::byte* const input = placement_.arena + inputBegin_;
    placement_.operands.input = input;
    WeighedRows onDevice = *rows;
    onDevice.weights = weighing_;
    if (rows->count > 0)
      lanes.gpu().weighGradients(onDevice, reinterpret_cast<float*>(input), stream);
  }
  addRows(lanes.gpu(), zeros_, stream);
}

void RowRun::copyRows(Gpu& gpu, Range copies, Gpu::Stream stream) const {
  if (copies.count == 0) return;
  gpu.copyRows(matrices(), {copies_.from + copies.first, copies_.to + copies.first, copies.count},
               stream);
}

void RowRun::addRows(Gpu& gpu, Range sums, Gpu::Stream stream) const {
  if (sums.count == 0) return;
  gpu.addRows(placement_.operands.datatype, matrices(),
              {sums_.begins + sums.first, sums_.terms, sums_.to + sums.first, sums.count},
              placement_.operands.weighted() ? weights_ : RowWeights{}, stream);
}

void RowRun::copyAndPack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  copyRows(gpu, packs_[launch], stream);
}

void RowRun::unpack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  copyRows(gpu, unpacks_[launch], stream);
}

void RowRun::reduce(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  addRows(gpu, launchSums_[launch], stream);
}

}  // namespace moeccl

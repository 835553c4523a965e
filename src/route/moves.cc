// How a pass moves rows on its rank: splits, joins, other orders.
#include <algorithm>

#include "src/route/pass_run.h"

namespace moeccl::schedules {
namespace {

std::size_t commonEnd(const Shape& one, const Shape& other) {
  std::size_t length = 0;
  while (length < one.size() && length < other.size() &&
         one[one.size() - 1 - length] == other[other.size() - 1 - length])
    ++length;
  return length;
}

[[noreturn]] void refuse(const Phase& phase) {
  throw Error(moecclInternalError, phase.name + ": no layer's schedule moves rows so");
}

}  // namespace

std::int64_t PassRun::tokensOf(const Table& it) const {
  return sizes_.tokensOf(it, groups_.mp.rank);
}

// A part that lies in the table that is split needs no copy.
void PassRun::split(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  void* const target = at(to);
  if (target == nullptr || target == at(from)) return;
  const Shape& shape = table(from).shape;
  if (shape.front() == Dim::tokens) {
    const std::int64_t width = sizes_.elements(std::span(shape).subspan(1));
    const void* const part =
        mover_.at(at(from), sizes_.firstToken(table(to), groups_.mp.rank) * width);
    if (part != target) mover_.copy(target, part, tokensOf(table(to)) * width, stream_);
    return;
  }
  const Dim dim = phase.group == GroupKind::mp   ? Dim::mp
                  : phase.group == GroupKind::ep ? Dim::ep
                                                 : Dim::esp;
  const auto place = std::ranges::find(shape, dim);
  const Group& group = groups_.of(phase.group);
  if (group.ranks == 1) return mover_.copy(target, at(from), elements(to), stream_);
  if (place == shape.end() || half_->binding.late(from)) refuse(phase);
  const std::int64_t block = sizes_.elements({place + 1, shape.end()});
  const void* const first = mover_.at(at(from), group.rank * block);
  if (first != target)
    mover_.transpose(target, first, 1, sizes_.elements({shape.begin(), place}), block,
                     group.ranks * block, stream_);
}

void PassRun::joinParts(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  if (table(to).shape.front() != Dim::tokens) refuse(phase);
  const Table& parts = table(from);
  const bool gathered = parts.shape.front() == Dim::mp;
  const bool apart = half_->binding.joinsAreApart(to);
  const std::int64_t width = elements(to) / std::max<std::int64_t>(sizes_.at(Dim::tokens), 1);
  const std::int64_t padded = sizes_.paddedTokens(parts);
  if (!apart && half_->written[static_cast<std::size_t>(to)] == 0)
    mover_.zero(at(to), elements(to), stream_);
  const int begin = gathered ? 0 : groups_.mp.rank;
  const int end = gathered ? groups_.mp.ranks : begin + 1;
  for (int part = begin; part < end; ++part) {
    void* const place = mover_.at(at(to), sizes_.firstToken(parts, part) * width);
    const void* const source = mover_.at(at(from), (part - begin) * padded * width);
    const std::int64_t count = sizes_.tokensOf(parts, part) * width;
    if (place == source || count == 0) continue;
    apart ? mover_.copy(place, source, count, stream_) : mover_.add(place, source, count, stream_);
  }
}

void PassRun::regroup(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  if (half_->binding.late(to)) return regroupRuns(phase);
  const int whole = half_->binding.place(from).of;
  if (whole < 0) {
    if (at(from) != at(to))
      regroupBlocks(phase, at(from), 0, commonEnd(table(from).shape, table(to).shape));
    return;
  }
  // The rank's own blocks of a table that its group has all of.
  const Shape& shape = table(whole).shape;
  std::size_t place = 0;
  while (place < table(from).shape.size() && table(from).shape[place] == shape[place]) ++place;
  const std::int64_t block = sizes_.elements(std::span(shape).subspan(place + 1));
  const bool ofShards = shape[place] == Dim::esp;
  const Group& group = ofShards ? groups_.esp : shape[place] == Dim::ep ? groups_.ep : groups_.mp;
  const std::size_t behind = shape.size() - place - 1;
  regroupBlocks(phase, mover_.at(at(whole), group.rank * block), group.ranks * block,
                std::min(behind, commonEnd(table(from).shape, table(to).shape)));
}

// Blocks are of the last `depth` dimensions. distance: from one to the next in `from`; 0: they lie
// together.
void PassRun::regroupBlocks(const Phase& phase, const void* from, std::int64_t distance,
                            std::size_t depth) {
  const Shape& old = table(phase.reads[0]).shape;
  const Shape& made = table(phase.writes[0]).shape;
  void* const to = at(phase.writes[0]);
  const std::size_t front = old.size() - depth;
  const std::span<const Dim> indices = std::span(old).first(front);
  const std::int64_t block = sizes_.elements(std::span(old).subspan(front));
  if (distance == 0) distance = block;
  // [outer][inner] -> [inner][outer].
  for (std::size_t outer = 1; outer <= front; ++outer) {
    const std::span<const Dim> first = indices.first(outer), rest = indices.subspan(outer);
    const auto turned = made.begin() + std::ssize(rest);
    if (!std::equal(rest.begin(), rest.end(), made.begin()) ||
        !std::equal(first.begin(), first.end(), turned))
      continue;
    mover_.transpose(to, from, sizes_.elements(first), sizes_.elements(rest), block, distance,
                     stream_);
    return;
  }
  // Any other order, block by block.
  runs_.clear();
  const std::int64_t blocks = sizes_.elements(indices);
  for (std::int64_t target = 0; target < blocks; ++target) {
    std::int64_t rest = target, source = 0;
    for (std::size_t dim = front; dim-- > 0;) {
      const std::int64_t size = sizes_.at(made[dim]);
      const auto place = std::ranges::find(indices, made[dim]);
      if (place == indices.end()) refuse(phase);
      source += rest % size * sizes_.elements({place + 1, indices.end()});
      rest /= size;
    }
    addRun(mover_.at(to, target * block), mover_.at(from, source * distance), block);
  }
  mover_.copyRuns(runs_, stream_);
}

void PassRun::regroupRuns(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  const int whole = half_->binding.place(from).of;
  const int source = whole < 0 ? from : whole;
  const void* const rows = at(source);
  void* const made = at(to);
  if (rows == made) return;
  const std::int64_t embedding = sizes_.at(Dim::embedding);
  const Layout& old = layout(source);
  const Layout& target = layout(to);
  runs_.clear();
  target.each([&](int ep, int esp, std::int64_t expert) {
    const std::int64_t count = target.count(ep, esp, expert);
    addRun(mover_.at(made, target.begin(ep, esp, expert) * embedding),
           mover_.at(rows, old.begin(ep, esp, expert) * embedding), count * embedding);
  });
  mover_.copyRuns(runs_, stream_);
}

// Runs that follow one another on both sides are one.
void PassRun::addRun(void* to, const void* from, std::int64_t count) {
  if (count == 0) return;
  if (!runs_.empty()) {
    CopiedRun& last = runs_.back();
    if (mover_.at(last.to, last.count) == to && mover_.at(last.from, last.count) == from) {
      last.count += count;
      return;
    }
  }
  runs_.push_back({to, from, count});
}

void PassRun::add(const Phase& phase) {
  const int from = phase.reads[0], to = phase.writes[0];
  const Table& target = table(to);
  const bool ofChunk = target.shape.front() == Dim::chunkTokens;
  const std::int64_t embedding = sizes_.at(Dim::embedding);
  const std::int64_t first = ofChunk ? target.chunk * sizes_.at(Dim::chunkTokens) : 0;
  const bool wholePart = table(from).shape.front() == Dim::partTokens;
  mover_.add(at(to), mover_.at(at(from), wholePart ? first * embedding : 0),
             tokensOf(target) * embedding, stream_);
}

}  // namespace moeccl::schedules

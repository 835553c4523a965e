// The exchanges of a pass, by the collectives of its groups.
#include <algorithm>

#include "src/route/pass_run.h"

namespace moeccl::schedules {
namespace {

// Rows of each rank of a group, one after another, as counts and begins of elements.
void setParts(std::span<const std::int64_t> rows, std::int64_t embedding,
              std::vector<std::size_t>& counts, std::vector<std::size_t>& begins) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    counts[i] = static_cast<std::size_t>(rows[i] * embedding);
    begins[i] = static_cast<std::size_t>(begin * embedding);
    begin += rows[i];
  }
}

}  // namespace

void PassRun::exchange(const Phase& phase) {
  if (groups_.of(phase.group).ranks == 1) {
    for (std::size_t i = 0; i < phase.writes.size(); ++i) {
      void* const to = at(phase.writes[i]);
      const void* const from = at(phase.reads[i]);
      if (to != from && to != nullptr) mover_.copy(to, from, elements(phase.writes[i]), stream_);
    }
    return;
  }
  const moecclStream_t stream = phase.stream == 0 ? stream_ : side(phase.stream).get();
  const bool rows = carrier(schedule(), phase) == Collective::allToAllv;
  check(phase.name, rows ? ofRows(phase, stream) : even(phase, stream));
  const bool adds = rows && phase.collective == Collective::reduceScatter;
  const bool several = phase.writes.size() > 1;
  if ((adds || several) && phase.stream != 0) join(phase.stream, phase.name);
  if (adds) addSummands(phase);
  for (std::size_t i = 0; several && i < phase.writes.size(); ++i)
    if (at(phase.writes[i]) != at(phase.reads[i]))
      mover_.copy(at(phase.writes[i]), at(phase.reads[i]), elements(phase.reads[i]), stream_);
  // The next exchange there may need that, and the memory that it is done with.
  if ((adds || several) && phase.stream != 0) side(phase.stream).follow(stream_);
}

moecclResult_t PassRun::even(const Phase& phase, moecclStream_t stream) {
  const int read = phase.reads[0], written = phase.writes[0];
  const void* const from = at(read);
  void* const to = at(written);
  const Group& group = groups_.of(phase.group);
  const moecclDataType_t type = table(read).element == Element::layer    ? mover_.datatype()
                                : table(read).element == Element::real64 ? moecclFloat64
                                                                         : moecclInt64;
  const auto count = static_cast<std::size_t>(elements(read));
  const auto ranks = static_cast<std::size_t>(group.ranks);
  const auto ofGrid = [&](decltype(moecclDispatch)& function, int given) {
    const std::int64_t experts = sizes_.at(Dim::localExperts);
    return function(from, to, static_cast<std::size_t>(elements(given) / experts / group.ranks),
                    static_cast<int>(experts), type, groups_.grid, stream);
  };
  switch (phase.collective) {
    case Collective::allToAll:
      return moecclAllToAll(from, to, count / ranks, type, group.comm, stream);
    case Collective::allGather:
      clearPadding(read, stream);
      return moecclAllGather(from, to, count, type, group.comm, stream);
    case Collective::reduceScatter:
      return moecclReduceScatter(from, to, count / ranks, type, moecclSum, group.comm, stream);
    case Collective::allReduce:
      return reduceAll(phase, stream);
    case Collective::dispatch:
      return ofGrid(moecclDispatch, written);
    case Collective::splitDispatch:
      return ofGrid(moecclSplitDispatch, written);
    case Collective::combine:
      return ofGrid(moecclCombine, read);
    case Collective::combineAllGather:
      return ofGrid(moecclCombineAllGather, read);
    default:
      throw Error(moecclInternalError, phase.name + ": no layer's schedule has such an exchange");
  }
}

// Several tables lie behind each other, and are reduced where they are; those that are nowhere
// nobody needs.
moecclResult_t PassRun::reduceAll(const Phase& phase, moecclStream_t stream) {
  const std::size_t tables = phase.writes.size();
  void* from = nullptr;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tables; ++i) {
    if (at(phase.reads[i]) == nullptr) continue;
    if (from == nullptr) from = at(phase.reads[i]);
    count += elements(phase.reads[i]);
  }
  void* const to = tables > 1 ? from : at(phase.writes[0]);
  return moecclAllReduce(from, to, static_cast<std::size_t>(count), mover_.datatype(), moecclSum,
                         groups_.of(phase.group).comm, stream);
}

moecclResult_t PassRun::ofRows(const Phase& phase, moecclStream_t stream) {
  const int read = phase.reads[0], written = phase.writes[0];
  const Group& group = groups_.of(phase.group);
  const std::int64_t embedding = sizes_.at(Dim::embedding);
  const auto ranks = static_cast<std::size_t>(group.ranks);
  switch (phase.collective) {
    case Collective::allToAll:
      setParts(layout(read).parts(), embedding, sendCounts_, sendBegins_);
      setParts(layout(written).parts(), embedding, recvCounts_, recvBegins_);
      break;
    case Collective::allGather:
      std::fill_n(sendCounts_.begin(), ranks, static_cast<std::size_t>(elements(read)));
      std::fill_n(sendBegins_.begin(), ranks, 0);
      setParts(layout(written).parts(), embedding, recvCounts_, recvBegins_);
      break;
    case Collective::reduceScatter:
      setParts(layout(read).parts(), embedding, sendCounts_, sendBegins_);
      for (std::size_t i = 0; i < ranks; ++i) {
        recvCounts_[i] = static_cast<std::size_t>(elements(written));
        recvBegins_[i] = i * recvCounts_[i];
      }
      break;
    default:
      throw Error(moecclInternalError, phase.name + ": no layer's schedule has such rows");
  }
  return moecclAllToAllv(at(read), sendCounts_.data(), sendBegins_.data(), at(written),
                         recvCounts_.data(), recvBegins_.data(), mover_.datatype(), group.comm,
                         stream);
}

// In the order of the ranks.
void PassRun::addSummands(const Phase& phase) {
  const int written = phase.writes[0];
  const std::int64_t count = elements(written);
  for (int rank = 1; rank < groups_.of(phase.group).ranks; ++rank)
    mover_.add(at(written), mover_.at(at(written), rank * count), count, stream_);
}

// Padding is sent too.
void PassRun::clearPadding(int index, moecclStream_t stream) {
  const Table& it = table(index);
  if (!isTokens(it.shape.front()) || it.element != Element::layer) return;
  const std::int64_t padded = sizes_.paddedTokens(it), tokens = tokensOf(it);
  if (tokens == padded) return;
  const std::int64_t width = elements(index) / padded;
  mover_.zero(mover_.at(at(index), tokens * width), (padded - tokens) * width, stream);
}

}  // namespace moeccl::schedules

// Follows payloads op by op through the outputs and scratch blocks of all ranks. A cell holds one
// payload, or the number of a sum; wrong content is reported where it is written.
#include "src/verify/data.h"

#include <algorithm>

namespace moeccl::verification {
namespace {

constexpr std::uint64_t encode(Payload payload) {
  return static_cast<std::uint64_t>(payload.rank) << 32 | static_cast<std::uint32_t>(payload.block);
}

constexpr Payload decode(std::uint64_t content) {
  return {static_cast<std::int32_t>(content >> 32), static_cast<std::int32_t>(content)};
}

// Most sums grow by one term, or come in order.
void sortTerms(std::vector<Payload>& terms) {
  const auto rest = std::ranges::is_sorted_until(terms);
  if (rest == terms.end()) return;
  std::sort(rest, terms.end());
  std::inplace_merge(terms.begin(), rest, terms.end());
}

}  // namespace

DataFlow::DataFlow(Job& job) : job_(job) {
  std::int64_t cells = 0;
  for (int rank = 0; rank < job.ranks(); ++rank) {
    firstCell_.push_back(cells);
    cells += outputCells(rank) + static_cast<std::int64_t>(job.plans[rank].scratch.size());
  }
  cells_.resize(static_cast<size_t>(cells));
}

void DataFlow::run(std::int64_t op) {
  const Op& what = job_.at(op);
  const int rank = job_.rankOf[op], index = job_.indexOf(op);
  const Plan& plan = job_.plans[rank];
  switch (what.kind) {
    case OpKind::send:
      break;
    case OpKind::recv: {
      const Plan& sender = job_.plans[what.peer];
      move(index, what.peer, Walk(sender.src(sender.ops[job_.partner[op]])), rank,
           Walk(plan.dst(what)));
      break;
    }
    case OpKind::copy:
      move(index, rank, Walk(plan.src(what)), rank, Walk(plan.dst(what)));
      break;
    case OpKind::reduce:
      reduce(rank, index);
      break;
  }
}

void DataFlow::move(int op, int srcRank, Walk src, int dstRank, Walk dst) {
  for (; !dst.done() && !job_.full(); src.next(), dst.next())
    write(op, {dstRank, dst.buffer(), dst.block()}, read({srcRank, src.buffer(), src.block()}));
}

void DataFlow::reduce(int rank, int op) {
  const Plan& plan = job_.plans[rank];
  const std::span<const Blocks> dst = plan.dst(plan.ops[op]);
  // Source block i goes to destination i modulo their number.
  std::vector<std::vector<Payload>> sums(static_cast<size_t>(blockCount(dst)));
  std::vector<Content> last(sums.size());  // terms
  size_t j = 0;
  for (Walk src(plan.src(plan.ops[op])); !src.done(); src.next(), j = (j + 1) % sums.size()) {
    const Content term = read({rank, src.buffer(), src.block()});
    const std::string wrong = wrongTerm(term, sums[j].empty() ? term : last[j]);
    last[j] = term;
    const std::vector<Payload>& more = payloads(term);
    if (!wrong.empty())
      job_.report(
          rank, op,
          "adds " + contentName(more) + " in " + blockName(src.buffer(), src.block()) + wrong);
    sums[j].insert(sums[j].end(), more.begin(), more.end());
  }
  Walk to(dst);
  for (std::vector<Payload>& sum : sums) {
    if (!job_.promise.ordered) sortTerms(sum);
    const bool isSum = sum.size() > 1 || job_.promise.group;
    const Content content = isSum ? kSum | sums_.size() : encode(sum[0]);
    if (isSum) sums_.push_back(std::move(sum));
    write(op, {rank, to.buffer(), to.block()}, content);
    to.next();
  }
}

bool DataFlow::coversGroups(Content content) {
  const std::vector<Payload>& held = payloads(content);
  const int first = job_.promise.group(held[0]);
  return std::ranges::any_of(held, [&](Payload p) { return job_.promise.group(p) != first; });
}

std::string DataFlow::wrongTerm(Content term, Content before) {
  if (!job_.promise.ordered) return "";
  if (!job_.promise.group)
    return (term & kSum) == 0 ? ""
                              : " to others; how such a sum is rounded depends on the algorithm";
  const bool isSum = (term & kSum) != 0;
  if (isSum != ((before & kSum) != 0)) return " to what is of another round";
  if (isSum && (coversGroups(term) || coversGroups(before)))
    return " to others, where one is of several groups already";
  if (term == before) return "";
  if (isSum == (groupOf(term) == groupOf(before)))
    return isSum ? " to another sum of its group" : " to one of another group";
  return "";
}

DataFlow::Content DataFlow::read(const Place& place) const {
  if (place.buffer == Buffer::input) return encode(job_.identity({place.rank, place.block}));
  return cells_[cell(place)];
}

void DataFlow::write(int op, const Place& place, Content content) {
  const std::vector<Payload>& held = payloads(content);
  if (place.buffer == Buffer::scratch) {
    cells_[cell(place)] = content;
    checkScratch(op, place, held);
  } else {
    if (outputCells(place.rank) > 0) cells_[cell(place)] = content;
    checkOutput(op, place, held, (content & kSum) != 0);
  }
}

void DataFlow::checkOutput(int op, const Place& place, const std::vector<Payload>& held,
                           bool isWhole) {
  job_.expected(place.rank, place.block, expected_);
  if (!job_.promise.ordered) sortTerms(expected_);
  if (held == expected_) {
    if (job_.promise.group && !isWhole)
      job_.report(place.rank, op,
                  "brings " + contentName(held) + " into " + blockName(place.buffer, place.block) +
                      " without the sums that were promised");
    return;
  }
  job_.report(place.rank, op,
              "brings " + contentName(held) + " into " + blockName(place.buffer, place.block) +
                  ", which must hold " + contentName(expected_));
}

void DataFlow::checkScratch(int op, const Place& place, const std::vector<Payload>& held) {
  if (job_.promise.uniform) return;
  const Payload size = job_.identity(job_.plans[place.rank].scratch[place.block]);
  for (Payload payload : held) {
    if (payload.block == size.block && (payload.rank == size.rank || job_.promise.sums)) continue;
    job_.report(place.rank, op,
                "brings " + contentName(held) + " into " + blockName(place.buffer, place.block) +
                    ", which is as large as " + payloadName(size));
    return;
  }
}

const std::vector<Payload>& DataFlow::payloads(Content content) {
  if (content & kSum) return sums_[content & ~kSum];
  single_.assign(1, decode(content));
  return single_;
}

std::string DataFlow::contentName(const std::vector<Payload>& payloads) const {
  constexpr size_t kShown = 6;
  if (payloads.empty()) return "nothing";
  std::string name = payloads.size() > 1 ? "the sum of " : "";
  for (size_t i = 0; i < payloads.size() && i < kShown; ++i)
    name += (i > 0 ? ", " : "") + payloadName(payloads[i]);
  if (payloads.size() > kShown)
    name += " and " + std::to_string(payloads.size() - kShown) + " more";
  return name;
}

}  // namespace moeccl::verification

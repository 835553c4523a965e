// Keeps counts of rows by position, shard and expert, and finds where each run of rows begins in
// the order that a table's shape gives.
#include "src/route/rows.h"

#include <algorithm>

namespace moeccl::schedules {

Counts::Counts(const Sizes& sizes, const Groups& groups)
    : eps_(groups.ep.ranks),
      esps_(groups.esp.ranks),
      shard_(groups.esp.rank),
      shardsFollow_(groups.shape.order == moecclOrderEspEp),
      experts_(sizes.at(Dim::localExperts)),
      own_(static_cast<std::size_t>(eps_ * esps_ * experts_)),
      given_(own_.size()) {}

void Counts::setOwn(std::span<const std::int64_t> counts, const Shape& shape) {
  set(own_, counts, shape);
}
void Counts::setGiven(std::span<const std::int64_t> counts, const Shape& shape) {
  set(given_, counts, shape);
}

void Counts::set(std::vector<std::int64_t>& all, std::span<const std::int64_t> counts,
                 const Shape& shape) const {
  if (shape.back() == Dim::ranks) {
    for (std::int64_t expert = 0; expert < experts_; ++expert)
      for (int rank = 0; rank < eps_ * esps_; ++rank) {
        const int ep = shardsFollow_ ? rank / esps_ : rank % eps_;
        const int esp = shardsFollow_ ? rank % esps_ : rank / eps_;
        all[at(ep, esp, expert)] = counts[static_cast<std::size_t>(expert * eps_ * esps_ + rank)];
      }
    return;
  }
  const bool shards = has(shape, Dim::esp);
  const bool shardsFirst = shape.front() == Dim::esp;
  for (int ep = 0; ep < eps_; ++ep)
    for (int esp = 0; esp < esps_; ++esp) {
      if (!shards && esp != shard_) continue;
      const std::int64_t block = !shards       ? ep
                                 : shardsFirst ? std::int64_t{esp} * eps_ + ep
                                               : std::int64_t{ep} * esps_ + esp;
      std::ranges::copy(counts.subspan(static_cast<std::size_t>(block * experts_),
                                       static_cast<std::size_t>(experts_)),
                        all.begin() + static_cast<std::ptrdiff_t>(at(ep, esp, 0)));
    }
}

Layout::Layout(const Shape& shape, bool isOwn, const Counts& counts)
    : counts_(counts),
      isOwn_(isOwn),
      hasShards_(has(shape, Dim::esp) || has(shape, Dim::ranks)),
      begins_(static_cast<std::size_t>(counts.eps() * counts.esps() * counts.experts())) {
  for (const Dim dim : shape) {
    if (dim == Dim::ep || dim == Dim::esp || dim == Dim::localExperts) order_.push_back(dim);
    if (dim != Dim::ranks) continue;
    order_.push_back(counts.shardsFollow() ? Dim::ep : Dim::esp);
    order_.push_back(counts.shardsFollow() ? Dim::esp : Dim::ep);
  }
  const std::int64_t first = order_.front() == Dim::ep    ? counts.eps()
                             : order_.front() == Dim::esp ? counts.esps()
                                                          : counts.experts();
  parts_.resize(static_cast<std::size_t>(first));
}

void Layout::bind() {
  rows_ = 0;
  std::ranges::fill(parts_, 0);
  each([&](int ep, int esp, std::int64_t expert) {
    const std::int64_t rows = count(ep, esp, expert);
    begins_[at(ep, esp, expert)] = rows_;
    rows_ += rows;
    const std::int64_t part = order_.front() == Dim::ep    ? ep
                              : order_.front() == Dim::esp ? esp
                                                           : expert;
    parts_[static_cast<std::size_t>(part)] += rows;
  });
}

}  // namespace moeccl::schedules

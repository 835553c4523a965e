// Rows that are bound late: how many there are, and where they lie in the tables of a pass.
//
// The rows of one expert that came the same way lie together: a run. Tables differ in the order of
// their runs. A rank's own rows are those of the tokens that it has gated, for experts anywhere;
// the others are those that came for its experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/sizes.h"
#include "src/route/groups.h"

namespace moeccl::schedules {

// How many rows each run has.
class Counts {
 public:
  Counts(const Sizes& sizes, const Groups& groups);

  // By the shapes of the tables of counts: [ep][localExperts], of own ones or those that the own
  // shard of an expert gets, or with [esp] in front or between; or [localExperts][ranks].
  void setOwn(std::span<const std::int64_t> counts, const Shape& shape);
  void setGiven(std::span<const std::int64_t> counts, const Shape& shape);
  std::int64_t own(int ep, int esp, std::int64_t expert) const { return own_[at(ep, esp, expert)]; }
  std::int64_t given(int ep, int esp, std::int64_t expert) const {
    return given_[at(ep, esp, expert)];
  }

  int eps() const { return eps_; }
  int esps() const { return esps_; }
  std::int64_t experts() const { return experts_; }
  int shard() const { return shard_; }
  // In the order of ranks the shards of one EP rank follow each other, else the other way round.
  bool shardsFollow() const { return shardsFollow_; }

 private:
  std::size_t at(int ep, int esp, std::int64_t expert) const {
    return static_cast<std::size_t>((ep * esps_ + esp) * experts_ + expert);
  }
  void set(std::vector<std::int64_t>& all, std::span<const std::int64_t> counts,
           const Shape& shape) const;

  int eps_, esps_, shard_;
  bool shardsFollow_;
  std::int64_t experts_;
  std::vector<std::int64_t> own_, given_;  // [ep][esp][localExperts]
};

// The order of the runs of a table, and where each begins.
class Layout {
 public:
  // `shape`: of a table with runs. isOwn: of the rank's own rows.
  Layout(const Shape& shape, bool isOwn, const Counts& counts);

  bool isOwn() const { return isOwn_; }
  void bind();

  // Once bound:
  std::int64_t rows() const { return rows_; }
  std::int64_t count(int ep, int esp, std::int64_t expert) const {
    return isOwn_ ? counts_.own(ep, esp, expert) : counts_.given(ep, esp, expert);
  }
  std::int64_t begin(int ep, int esp, std::int64_t expert) const {
    return begins_[at(ep, esp, expert)];
  }
  // Rows of each index of the first dimension.
  std::span<const std::int64_t> parts() const { return parts_; }

  // Calls function(ep, esp, expert) run by run.
  template <typename Function>
  void each(Function function) const {
    std::int64_t index[3] = {};
    eachFrom(0, index, function);
  }

 private:
  template <typename Function>
  void eachFrom(std::size_t depth, std::int64_t (&index)[3], Function& function) const {
    if (depth == order_.size()) {
      const std::int64_t esp = hasShards_ ? index[1] : counts_.shard();
      function(static_cast<int>(index[0]), static_cast<int>(esp), index[2]);
      return;
    }
    const Dim dim = order_[depth];
    const std::size_t place = dim == Dim::ep ? 0 : dim == Dim::esp ? 1 : 2;
    const std::int64_t size = place == 0   ? counts_.eps()
                              : place == 1 ? counts_.esps()
                                           : counts_.experts();
    for (index[place] = 0; index[place] < size; ++index[place])
      eachFrom(depth + 1, index, function);
  }
  std::size_t at(int ep, int esp, std::int64_t expert) const {
    return static_cast<std::size_t>((ep * counts_.esps() + esp) * counts_.experts() + expert);
  }

  const Counts& counts_;
  Shape order_;  // of ep, esp and localExperts
  bool isOwn_, hasShards_;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> begins_, parts_;
};

}  // namespace moeccl::schedules

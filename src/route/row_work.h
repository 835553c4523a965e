// What a pass does on its rank to bring tokens to rows and back, whoever has chosen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/model/layer_shape.h"
#include "src/route/groups.h"
#include "src/route/row_compute.h"
#include "src/route/work.h"

namespace moeccl {

inline bool hasDim(const schedules::Table& table, schedules::Dim dim) {
  return std::ranges::count(table.shape, dim) > 0;
}

// Memory, elements and streams as in src/route/mover.h. What it is made with must outlive it.
class RowWork : public schedules::Work {
 public:
  RowWork(const Groups& groups, RowCompute& compute, const LayerShape& shape,
          const schedules::Schedule& forward);

  void readCounts(const schedules::Table& table, std::span<std::int64_t> counts) override;
  schedules::Chosen chosen(const schedules::Table& routing) override;
  void setWeightGradients(const schedules::Table& routing, const float* from, void* to,
                          moecclStream_t stream) override;
  void permute(const schedules::Step& step) override;
  void combine(const schedules::Step& step) override;
  void permuteBackward(const schedules::Step& step) override;
  void combineBackward(const schedules::Step& step) override;
  std::span<const std::int64_t> keptBegins() override { return keptBegins_; }

 protected:
  // By chunk, and of each by ESP rank where there are batches.
  void setRouters(std::vector<RowRouter*> routers);
  // How gates take tokens: in how many chunks, with the batches of all ESP ranks or one, and how
  // many tokens with padding.
  int chunks() const { return chunks_; }
  bool ofBatches() const { return ofBatches_; }
  int routersOfChunk() const { return ofBatches_ ? groups_.esp.ranks : 1; }
  std::int64_t gatedTokens() const { return gatedTokens_; }

  const LayerShape& shape() const { return shape_; }
  const schedules::Sizes& sizes() const { return sizes_; }
  const Groups& groups() const { return groups_; }
  // The router of a chunk's table of routing; where there are several batches, that of the own one.
  RowRouter& routerOf(const schedules::Table& routing);
  // For each router of a table's chunk, where each expert begins in its list, [experts + 1].
  std::span<const std::int64_t*> beginsOf(const schedules::Table& table) {
    return ofChunk(std::span(begins_), table);
  }
  template <typename Each>
  std::span<Each> ofChunk(std::span<Each> all, const schedules::Table& table) const {
    const auto each = static_cast<std::size_t>(routersOfChunk());
    return all.subspan(static_cast<std::size_t>(table.chunk) * each, each);
  }
  // The number of batches in a table of counts.
  int batchesOf(const schedules::Table& table) const;
  // Once lists have been made.
  void setKept();
  // Tokens of a table that has the own batch's, without padding.
  std::int64_t tokensOf(const schedules::Table& table) const;

 private:
  std::span<RowRouter*> routersOf(const schedules::Table& table) {
    return ofChunk(std::span(routers_), table);
  }
  // The rank's own choices in the list of a router, or those of the expert that the step is about.
  RowRouter::Listed listed(const schedules::Step& step, const RowRouter& router) const;
  // Places per expert in a table of rows, over all batches.
  std::int64_t stride(const schedules::Table& rows) const;
  void permuteBatches(const schedules::Step& step);

  RowCompute& compute_;
  const LayerShape shape_;
  const schedules::Sizes sizes_;
  const Groups& groups_;
  int chunks_ = 0;
  bool ofBatches_ = false;
  std::int64_t gatedTokens_ = 0;
  std::vector<RowRouter*> routers_;
  std::vector<const std::int64_t*> begins_;  // by router, as its list says
  std::vector<Gathering> gatherings_;        // at hand
  std::vector<std::int64_t> keptBegins_;
};

}  // namespace moeccl

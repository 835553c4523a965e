// What a pass does on its rank to bring tokens to rows and back, whoever has chosen: by which
// schedules, with which sizes, and how rows move.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/model/layer_shape.h"
#include "src/route/groups.h"
#include "src/route/row_compute.h"

namespace moeccl {
namespace schedules {

// A phase that is due.
struct Step {
  const Schedule& schedule;
  const Phase& phase;
  // Where its tables lie; nullptr: the layer has them itself, which are routing, weights, what
  // gates sum up, and gradients of weights that nobody adds up over ranks.
  std::span<void*const> reads, writes;
  std::span<const bool> first;  // by `writes`: nobody has written it yet in this pass
  std::int64_t expert;          // the rank's own, where they go one by one; else -1
  moecclStream_t stream;

  const Table& read(std::size_t index) const { return table(phase.reads[index]); }
  const Table& written(std::size_t index) const { return table(phase.writes[index]); }

 private:
  const Table& table(int index) const { return schedule.tables[static_cast<std::size_t>(index)]; }
};

}  // namespace schedules

// Gets ready for calls of a pass, behind the caller's stream's earlier work and `passed`. Returns
// the stream that they go on. Throws Error.
moecclStream_t comeBehind(RowCompute& compute, Mark& passed, moecclStream_t stream);

// What a layer computes of its own, and a pass around the caller's experts leaves out.
class OwnWork {
 public:
  virtual ~OwnWork() = default;

  virtual void gateBackward(const schedules::Step& step) = 0;
  virtual void residual(const schedules::Step& step) = 0;
  virtual void residualBackward(const schedules::Step& step) = 0;
  // Where parts' sums lie, one after another.
  virtual double* sums() = 0;
  // Adds to the caller's gradients of the gate, or of the residual branch, what ranks have added
  // up.
  virtual void addGradients(schedules::Dim which, const void* gradients, moecclStream_t stream) = 0;
};

// Memory, elements and streams as in src/route/mover.h. What it is made with must outlive it.
class RowWork {
 public:
  // `own`: null in passes around the caller's experts. Experts that go one by one go so on hosts,
  // in layers; else all at once.
  RowWork(const Groups& groups, RowCompute& compute, const LayerShape& shape, OwnWork* own);
  virtual ~RowWork() = default;
  RowWork(const RowWork&) = delete;
  RowWork& operator=(const RowWork&) = delete;

  const LayerShape& shape() const { return shape_; }
  const schedules::Sizes& sizes() const { return sizes_; }
  const Groups& groups() const { return groups_; }
  RowCompute& compute() const { return compute_; }
  OwnWork* own() const { return own_; }
  // The schedules of both passes; null: nothing is kept for a backward one.
  const schedules::Schedule& forward() const { return forward_; }
  const schedules::Schedule* backward() const { return backward_ ? &*backward_ : nullptr; }

  // Forward, without capacity: sets the third table to how many rows each expert gets.
  virtual void gate(const schedules::Step& step) = 0;
  // The same on the host, once the stream of the gate has come so far. `table`: that of the counts.
  void readCounts(const schedules::Table& table, std::span<std::int64_t> counts);
  // For token routing. `routing`: the table of it. Valid until the next gate.
  moecclRouting_t chosen(const schedules::Table& routing) { return routerOf(routing).chosen(); }
  // Sets gradients of weights [tokens][k] from those of token routing.
  virtual void setWeightGradients(const schedules::Table& routing, const float* from, void* to,
                                  moecclStream_t stream);
  void permute(const schedules::Step& step);
  void combine(const schedules::Step& step);
  void permuteBackward(const schedules::Step& step);
  virtual void combineBackward(const schedules::Step& step);
  // Where the kept choices of each of the rank's own experts begin, by what the gate said,
  // [localExperts + 1], from 0 on.
  std::span<const std::int64_t> keptBegins() const { return keptBegins_; }

 protected:
  // By chunk, and of each by ESP rank where there are batches.
  void setRouters(std::vector<RowRouter*> routers);
  // How gates take tokens: in how many chunks, with the batches of all ESP ranks or one, and how
  // many tokens with padding.
  int chunks() const { return chunks_; }
  bool ofBatches() const { return ofBatches_; }
  int routersOfChunk() const { return ofBatches_ ? groups_.esp.ranks : 1; }
  std::int64_t gatedTokens() const { return gatedTokens_; }
  // Of a chunk's routers the one of the own batch.
  std::size_t ownRouter() const {
    return static_cast<std::size_t>(ofBatches_ ? groups_.esp.rank : 0);
  }

  // That of a chunk's table of routing.
  RowRouter& routerOf(const schedules::Table& routing) { return *routersOf(routing)[ownRouter()]; }
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
  schedules::Schedule scheduleOf(Pass pass) const;
  std::span<RowRouter*> routersOf(const schedules::Table& table) {
    return ofChunk(std::span(routers_), table);
  }
  // The rank's own choices in the list of a router, or those of the expert that the step is about.
  RowRouter::Listed listed(const schedules::Step& step, const RowRouter& router) const;
  // Places per expert in a table of rows, over all batches.
  std::int64_t stride(const schedules::Table& rows) const;
  void permuteBatches(const schedules::Step& step);

  RowCompute& compute_;
  OwnWork* const own_;
  const LayerShape shape_;
  const schedules::Schedule forward_;
  const std::optional<schedules::Schedule> backward_;  // with shape_.training
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

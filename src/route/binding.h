// Where the tables of a pass lie: which of them share memory, and how much is needed.
//
// A table lies in another where it is part of that (a rank's part of a batch, a block of what an
// all-gather makes) or takes its place (what experts make in place). The rest gets buffers. Two
// tables have the same one where whatever touches the first has ended before anything touches the
// second, on whichever streams.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/schedules/schedule.h"
#include "src/model/sizes.h"
#include "src/route/groups.h"

namespace moeccl::schedules {

enum class Storage : std::uint8_t {
  buffers,  // of one of those that passes of a layer take turns in, or of the pass's own
  nothing,  // the layer has it
  input,
  output,
  sums,
  view,  // every so many rows of another table, for a regroup to collect
  // In passes around the caller's experts: what these are given, and what they have made of it.
  rows,
  results,
  again,  // backward: what they had made forward
};

// What a pass has at its place in a layer's life: a pass between its halves has buffers of its own.
struct PassBuffer {
  std::int64_t bytes = 0;
  bool late = false;  // grows once the rows are bound
  bool own =
      false;  // the pass's, while it is under way; else other passes may use it between its halves
  bool kept = false;  // from forward to backward
};

struct Place {
  Storage storage = Storage::buffers;
  int buffer = -1;
  std::int64_t offset = 0;  // in bytes
  int of = -1;              // the table that a view is of
};

class Binding {
 public:
  // `backward`: of a forward pass, the one that keeps tables of it; else null. `forward`: of a
  // backward pass, the binding of the forward one, whose buffers these continue. `around`: rows of
  // the experts are the caller's, which has them again for the backward pass. All must outlive
  // this.
  Binding(const Schedule& schedule, const Sizes& sizes, const Groups& groups,
          std::int64_t elementBytes, const Schedule* backward, const Binding* forward, bool around);

  const Schedule& schedule() const { return schedule_; }
  const Place& place(int table) const { return places_[static_cast<std::size_t>(table)]; }
  const std::vector<PassBuffer>& buffers() const { return buffers_; }
  // Whether what the pass makes has to be copied to where the caller wants it: its input is read
  // until later.
  bool copiesOutput() const { return copiesOutput_; }
  // Whether the backward pass reads it.
  bool keeps(int table) const { return kept_[static_cast<std::size_t>(table)]; }
  // Whether all who write a batch are joins of parts, each of another chunk: then they need not
  // add.
  bool joinsAreApart(int batch) const { return apart_[static_cast<std::size_t>(batch)]; }
  // Bytes of the table; 0 while its rows are not bound.
  std::int64_t bytes(int table) const;
  bool late(int table) const;
  int ranksOf(GroupKind group) const;
  int rankIn(GroupKind group) const;

 private:
  struct Set;

  const Table& table(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }
  Storage& storageOf(int root) { return storages_[static_cast<std::size_t>(root)]; }
  int root(int table) const;
  std::int64_t offset(int table) const;
  bool isOpen(int table) const {
    return storages_[static_cast<std::size_t>(root(table))] == Storage::buffers;
  }

  bool findApart(int batch) const;
  bool isExchanged(int table) const;
  void fix();
  void fixExperts();
  void fixBackward();
  void alias(std::size_t phase);
  void aliasSplit(std::size_t phase);
  void aliasExchange(std::size_t phase);
  void aliasJoin(const Phase& phase);
  // `child` lies `offset` bytes into `parent`; does nothing where it cannot.
  void lie(int child, int parent, std::int64_t offset);
  // Both lie at the same place; does nothing where they cannot.
  void unite(int written, int read);
  // The phase writes where it reads, if nobody reads that later.
  void inPlace(std::size_t phase, int written, int read);
  bool readLater(std::size_t phase, int table) const;
  int writers(int table) const;
  bool isInput(int table) const;
  bool endsBefore(std::size_t phase, std::size_t other) const;
  bool outputIsFree() const;

  // pass_buffers.cc
  std::vector<Set> sets() const;
  void makeBuffers();

  const Schedule& schedule_;
  const Sizes& sizes_;
  const Groups& groups_;
  const std::int64_t elementBytes_;
  const Binding* const forward_;
  const bool around_;
  std::vector<std::vector<bool>> earlier_;
  std::vector<bool> kept_;  // by table, as those that follow
  std::vector<bool> apart_;
  std::vector<int> parents_;           // itself: a root
  std::vector<std::int64_t> offsets_;  // in the parent
  std::vector<Storage> storages_;      // of roots
  std::vector<Place> places_;
  std::vector<PassBuffer> buffers_;
  bool copiesOutput_ = false;
};

// Whether rows lie alike in two shapes: they differ in nothing but dimensions of size 1.
bool lieAlike(const Shape& one, const Shape& other, const Sizes& sizes);

}  // namespace moeccl::schedules

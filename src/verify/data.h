// What every block of every rank holds, as a multiset of payloads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/verify/job.h"

namespace moeccl::verification {

class DataFlow {
 public:
  explicit DataFlow(Job& job);

  // The effect of one op; every block that it reads must have been written. A message takes effect
  // with its receive. Reports what arrives in the wrong place or in a block of another size.
  void run(std::int64_t op);

 private:
  // A payload (rank, block), or with kSum an index into sums_.
  using Content = std::uint64_t;
  static constexpr Content kSum = Content{1} << 63;

  struct Place {
    int rank;
    Buffer buffer;
    std::int32_t block;
  };

  void move(int op, int srcRank, Walk src, int dstRank, Walk dst);
  void reduce(int rank, int op);
  // What is wrong with adding `term` to `before`, or being the first (equal to it), where the
  // promise is ordered; "" where nothing is.
  std::string wrongTerm(Content term, Content before);
  bool coversGroups(Content content);
  int groupOf(Content content) { return job_.promise.group(payloads(content)[0]); }

  Content read(const Place& place) const;
  void write(int op, const Place& place, Content content);
  // isWhole: it is a sum.
  void checkOutput(int op, const Place& place, const std::vector<Payload>& held, bool isWhole);
  // A block of scratch must be as large as what it holds. No other block needs to be asked: what an
  // input or an output holds is what its size follows from.
  void checkScratch(int op, const Place& place, const std::vector<Payload>& held);

  // Outputs that are never read need no cells: they are judged as they are written.
  int outputCells(int rank) const { return job_.readsOutputs[rank] ? job_.outputs[rank] : 0; }
  std::int64_t cell(const Place& place) const {
    return firstCell_[place.rank] + place.block +
           (place.buffer == Buffer::output ? 0 : outputCells(place.rank));
  }
  const std::vector<Payload>& payloads(Content content);
  std::string contentName(const std::vector<Payload>& payloads) const;

  Job& job_;
  std::vector<std::int64_t> firstCell_;  // by rank
  std::vector<Content> cells_;           // by rank: outputs, then scratch
  std::vector<std::vector<Payload>> sums_;
  std::vector<Payload> single_, expected_;
};

}  // namespace moeccl::verification

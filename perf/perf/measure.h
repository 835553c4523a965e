// One size, all competitors in turns.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "perf/common/competitor.h"
#include "perf/common/job.h"

namespace moeccl::perf {

struct Result {
  std::size_t size;   // bytes of the larger buffer of a rank
  std::size_t block;  // bytes
  std::size_t count;  // elements of a block
  const char* type;
  Competitor* competitor;
  bool inPlace;
  std::vector<double> times;  // microseconds per call, one for each repetition
  std::int64_t wrong;         // elements, on all ranks and in all checked calls; -1: not checked
  std::size_t reference;      // index of the result that this one is compared with; maybe its own
  double algorithmBandwidth;  // GB/s, of the median time
  double busBandwidth;
};

// Buffers for one size after the other.
class Measurement {
 public:
  // Collective.
  Measurement(const Options& options, const Job& job, const World& world,
              const std::vector<std::unique_ptr<Competitor>>& competitors)
      : options_(options),
        job_(job),
        world_(world),
        competitors_(competitors),
        send_(job.memory()),
        recv_(job.memory()),
        draws_(seedOf(job)) {}

  // `size` is an entry of options.sizes(). Returns results by competitor, out of place before in
  // place, the same on all ranks. Collective. Throws std::runtime_error.
  std::vector<Result> measure(std::uint64_t size, const DataType& type);

 private:
  struct Buffers {
    std::byte *send, *recv;
  };
  Buffers buffers(bool inPlace, std::size_t block);
  std::int64_t check(Competitor& competitor, bool inPlace, std::size_t count, const DataType& type);
  // The seed of the order of turns: another one in each run, the same on all ranks. Collective.
  static std::uint64_t seedOf(const Job& job);
  // Microseconds per call, on this rank.
  double time(Competitor& competitor, bool inPlace, std::size_t count, const DataType& type);

  const Options& options_;
  const Job& job_;
  const World& world_;
  const std::vector<std::unique_ptr<Competitor>>& competitors_;
  Buffer send_, recv_;
  Draws draws_;
  std::uint64_t checks_ = 0;
};

}  // namespace moeccl::perf

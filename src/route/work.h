// What a pass asks of its layer: what only that can compute.
#pragma once

#include <cstdint>
#include <span>

#include "src/model/sizes.h"
#include "src/route/side_stream.h"

namespace moeccl::schedules {

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

// The choices of a rank's tokens, in the memory of its buffers: [tokens][k], expert -1: nothing
// that is kept.
struct Chosen {
  std::int64_t tokens;
  const std::int32_t* experts;
  const float* weights;
};

class Work {
 public:
  virtual ~Work() = default;

  // Forward, without capacity: sets the third table to how many rows each expert gets.
  virtual void gate(const Step& step) = 0;
  // The same on the host, once the stream of the gate has come so far. `table`: that of the counts.
  virtual void readCounts(const Table& table, std::span<std::int64_t> counts) = 0;
  // For token routing. `routing`: the table of it. Valid until the next gate.
  virtual Chosen chosen(const Table& routing) = 0;
  // Sets gradients of weights [tokens][k] from those of token routing.
  virtual void setWeightGradients(const Table& routing, const float* from, void* to,
                                  moecclStream_t stream) = 0;
  virtual void permute(const Step& step) = 0;
  virtual void combine(const Step& step) = 0;
  virtual void residual(const Step& step) = 0;
  // The same backward.
  virtual void gateBackward(const Step& step) = 0;
  virtual void permuteBackward(const Step& step) = 0;
  virtual void combineBackward(const Step& step) = 0;
  virtual void residualBackward(const Step& step) = 0;

  // Where the kept choices of each of the rank's own experts begin, by what the gate said,
  // [localExperts + 1], from 0 on.
  virtual std::span<const std::int64_t> keptBegins() = 0;
  // Where parts' sums lie, one after another.
  virtual double* sums() = 0;
  // Adds to the caller's gradients of the gate, or of the residual branch, what ranks have added
  // up.
  virtual void addGradients(Dim which, const void* gradients, moecclStream_t stream) = 0;
};

}  // namespace moeccl::schedules

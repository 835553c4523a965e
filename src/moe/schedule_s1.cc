// S1: MP is paused before the gate and resumed after the combine (Parm III-B, figure 3(b)). With
// C = T / N_MP, the places per expert of one part, and every array followed by [embedding]:
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | gate
//   rows             [E][C]
//     | dispatch
//                    [E_local][P][C]                      by the rank it came from
//     | experts: partial sums, of the caller's hidden units
//                    [E_local][P][C]
//     | combine: sums over the shards
//                    [E][C]
//     | un-permute, weighted
//   part             [padded tokens / N_MP]
//     | MP-AllGather
//   output           [tokens]
//
// The gate's sums over the parts are gathered too, since the loss is that of the whole batch.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (1 - 1 / P) y / N_MP in dispatch and
// in combine when every shard gets a copy of its own (flat), (1 - 1 / N_MP) x in the MP-AllGather.
//
// Backward, the same upwards:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | MP-Split: the MP-AllGather mirrored
//   part             [padded tokens / N_MP]               the caller's
//     | weighted to the choices' places; with what experts returned: the weights' gradients
//   rows             [E][C]
//     | dispatch: the combine mirrored
//                    [E_local][P][C]
//     | experts: their weights' gradients, and partial sums of their inputs'
//                    [E_local][P][C]
//     | combine: the dispatch mirrored
//                    [E][C]
//     | un-permute, and the gate's part
//   part             [padded tokens / N_MP]
//     | MP-AllGather: the MP-Split mirrored
//   inputGradient    [tokens]
//
// The gate's gradients by the parts are added by an AllReduce over the MP group. Beside that as many
// bytes leave a rank as forward.
//
// Chunks: the caller's part may be cut in c chunks of whole capacity groups, which know nothing of each
// other, each with a stream of its own for exchanges. What stands in one column goes on at once, here for three:
//
//   chunk 0   dispatch | experts  | combine  | un-permute, MP-AllGather
//   chunk 1   dispatch |          | experts  | combine  | un-permute, MP-AllGather
//   chunk 2   dispatch |          |          | experts  | combine  | un-permute, MP-AllGather
//
// Whatever comes first, all ranks start the same collectives in the same order. The residual branch, where there
// is one, computes the caller's part while dispatch is under way, and joins it before the MP-AllGather.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>

#include "src/moe/parts.h"
#include "src/moe/residual.h"
#include "src/moe/router.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

struct Chunk {
  Chunk(const Groups& groups, Compute& compute, Phases& phases, std::int64_t chunkNumber)
      : number(chunkNumber),
        parts(groups, compute, phases, "MP-AllGather", chunkNumber, true),
        router(compute.router(compute.shape().chunkTokens(), compute.shape().training)),
        places(compute, elementCount({compute.shape().experts, compute.shape().grid.nEsp,
                                      compute.shape().chunkSlots(), compute.shape().embedding})) {
    const LayerShape& shape = compute.shape();
    if (shape.training)
      places.keepForBackward(elementCount({shape.experts, shape.chunkSlots(), shape.embedding}));
  }

  std::int64_t number;
  PartGather parts;
  std::unique_ptr<Router> router;
  Places places;
  std::unique_ptr<SideStream> side;  // of its exchanges; without, they are on the pass's stream
};

class S1 final : public Schedule {
 public:
  S1(const Groups& groups, Compute& compute) : Schedule(groups, compute) {
    for (std::int64_t number = 0; number < shape_.chunks; ++number) {
      Chunk& chunk = chunks_.emplace_back(groups_, compute, *this, number);
      if (overlaps()) chunk.side = compute.sideStream(groups.world.comm);
    }
    compute.reserveRows(shape_.localExperts * rowsPerExpert());
    if (shape_.residual > 0) residual_.emplace(groups_, compute, *this, false);
    if (shape_.training) gateGradient_.emplace(groups_, compute, *this);
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    // Once all chunks have started and the residual branch is computed `input` is not needed, so output may
    // be the same.
    moecclResult_t result = overlap(
        output, stream,
        [&](Chunk& chunk) {
          const void* const tokens = compute_.at(input, firstElement(chunk));
          chunk.router->routeChunk(weights.gate, drawOf(step, groups_.world.rank), tokens,
                                   groups_.mp.rank, chunk.number, sums, stream);
          chunk.router->scatter(tokens, shape_.chunkSlots(), chunk.places.rows(), stream);
        },
        [&] {
          return residual_ ? residual_->forward(weights.residual, input, stream) : moecclSuccess;
        },
        [&](Chunk& chunk) { runExperts(weights, chunk.places, rowsPerExpert(), stream); },
        [&](Chunk& chunk, void* part) {
          chunk.places.keepResults(stream);
          chunk.router->combine(chunk.places.rows(), shape_.chunkSlots(), part, stream);
          addResidual(chunk, part, stream);
        });
    return result == moecclSuccess ? gatherSums(groups_, *this, sums, stream) : result;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    gateGradient_->clear(stream);
    moecclResult_t result = overlap(
        inputGradient, stream,
        [&](Chunk& chunk) {
          chunk.router->combineBackward(chunk.places.keptResults(),
                                        compute_.at(outputGradient, firstElement(chunk)),
                                        shape_.chunkSlots(), chunk.places.rows(), stream);
        },
        [&] {
          return residual_ ? residual_->backward(weights.residual, outputGradient, stream)
                           : moecclSuccess;
        },
        [&](Chunk& chunk) {
          runExpertsBackward(weights, gradients, chunk.places, rowsPerExpert(), stream);
        },
        [&](Chunk& chunk, void* part) {
          chunk.router->scatterBackward(chunk.places.rows(), shape_.chunkSlots(), part, stream);
          chunk.router->gateBackward(weights.gate, sumGradients, gateGradient_->partial(), part,
                                     stream);
          addResidual(chunk, part, stream);
        });
    if (result == moecclSuccess) result = gateGradient_->addTo(gradients.gate, stream);
    if (result != moecclSuccess || !residual_) return result;
    return residual_->addGradients(gradients.residual, stream);
  }

  void abandon(moecclStream_t stream) override {
    for (Chunk& chunk : chunks_)
      if (chunk.side) chunk.side->join(stream);
    if (residual_) residual_->abandon(stream);
  }

 private:
  // Whether there is something to compute while exchanges go on.
  bool overlaps() const { return shape_.chunks > 1 || shape_.residual > 0; }

  // Each chunk through `fill`, dispatch, `experts`, combine, `finish`, which writes the caller's part of
  // it, and MP-AllGather, into `batch`, as drawn above; `meanwhile` while all dispatches are under way.
  template <typename Fill, typename Meanwhile, typename Experts, typename Finish>
  moecclResult_t overlap(void* batch, moecclStream_t stream, Fill fill, Meanwhile meanwhile,
                         Experts experts, Finish finish) {
    moecclResult_t result = moecclSuccess;
    for (Chunk& chunk : chunks_) {
      fill(chunk);
      result = dispatch(chunk.places, shape_.chunkSlots(), aside(chunk, stream));
      if (result != moecclSuccess) return result;
    }
    result = meanwhile();
    if (result != moecclSuccess) return result;
    for (std::size_t step = 0; step <= chunks_.size(); ++step) {
      if (step < chunks_.size()) {
        Chunk& chunk = chunks_[step];
        result = join("dispatch", chunk, stream);
        if (result != moecclSuccess) return result;
        experts(chunk);
        result = combine(chunk.places, shape_.chunkSlots(), aside(chunk, stream));
        if (result != moecclSuccess) return result;
      }
      if (step == 0) continue;
      Chunk& chunk = chunks_[step - 1];
      result = join("combine", chunk, stream);
      if (result != moecclSuccess) return result;
      finish(chunk, chunk.parts.own(batch));
      result = chunk.parts.gather(batch, aside(chunk, stream));
      if (result != moecclSuccess) return result;
    }
    for (Chunk& chunk : chunks_) {
      result = join("MP-AllGather", chunk, stream);
      if (result != moecclSuccess) return result;
      chunk.parts.spread(batch, stream);
    }
    return moecclSuccess;
  }

  // What a chunk's exchanges go on, behind what has been computed on the pass's `stream`.
  static moecclStream_t aside(Chunk& chunk, moecclStream_t stream) {
    if (!chunk.side) return stream;
    chunk.side->follow(stream);
    return chunk.side->get();
  }

  moecclResult_t join(const char* phase, Chunk& chunk, moecclStream_t stream) {
    return chunk.side ? noted(phase, chunk.side->join(stream)) : moecclSuccess;
  }

  // What one stream does advances all.
  void progress() override {
    if (chunks_[0].side) chunks_[0].side->progress();
  }

  std::int64_t rowsPerExpert() const { return groups_.world.ranks * shape_.chunkSlots(); }

  // Where the caller's part of a chunk begins in a batch.
  std::int64_t firstElement(const Chunk& chunk) const {
    return shape_.firstToken(groups_.mp.rank, chunk.number) * shape_.embedding;
  }

  // To `part`, the caller's tokens of the chunk.
  void addResidual(const Chunk& chunk, void* part, moecclStream_t stream) {
    if (!residual_) return;
    const std::int64_t first = shape_.firstToken(groups_.mp.rank, chunk.number);
    residual_->addRows(chunk.number * shape_.chunkTokens(),
                       std::min(shape_.tokens - first, shape_.chunkTokens()), part, stream);
  }

  std::deque<Chunk> chunks_;  // they cannot be moved
  std::optional<PartGateGradient> gateGradient_;
  std::optional<Residual> residual_;
};

}  // namespace

std::unique_ptr<Schedule> s1Schedule(const Groups& groups, Compute& compute) {
  return std::make_unique<S1>(groups, compute);
}

}  // namespace moeccl

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
// other, each on a stream of its own. What stands in one column goes on at once, here for three:
//
//   chunk 0   dispatch | experts  | combine  | un-permute, MP-AllGather
//   chunk 1   dispatch |          | experts  | combine  | un-permute, MP-AllGather
//   chunk 2   dispatch |          |          | experts  | combine  | un-permute, MP-AllGather
//
// Whatever comes first, all ranks start the same collectives in the same order.
#include <algorithm>
#include <deque>
#include <optional>

#include "src/moe/router.h"
#include "src/moe/schedule.h"
#include "src/moe/stream.h"

namespace moeccl {
namespace {

struct Chunk {
  Chunk(Compute& compute, std::int64_t chunkNumber)
      : number(chunkNumber),
        router(compute.router(compute.shape().chunkTokens(), compute.shape().training)),
        places(compute, elementCount({compute.shape().experts, compute.shape().grid.nEsp,
                                      compute.shape().chunkSlots(), compute.shape().embedding})) {
    const LayerShape& shape = compute.shape();
    if (shape.training)
      places.keepForBackward(elementCount({shape.experts, shape.chunkSlots(), shape.embedding}));
  }

  std::int64_t number;
  std::unique_ptr<Router> router;
  Places places;
  std::optional<OwnStream> ownStream;
  moecclStream_t stream = nullptr;  // its own, or where there is but one chunk that of the pass
  // [N_MP][chunk tokens][embedding], where the caller's batch has no room for that as it comes.
  Memory gathered;
};

class S1 final : public Schedule {
 public:
  S1(const Groups& groups, Compute& compute) : Schedule(groups, compute) {
    const bool fits = shape_.chunks == 1 && shape_.paddedTokens() == shape_.tokens;
    const std::int64_t gathered =
        elementCount({shape_.grid.nMp, shape_.chunkTokens(), shape_.embedding});
    for (std::int64_t number = 0; number < shape_.chunks; ++number) {
      Chunk& chunk = chunks_.emplace_back(compute, number);
      if (shape_.chunks > 1) chunk.ownStream.emplace(groups.world.comm);
      if (shape_.grid.nMp == 1 || fits) continue;
      chunk.gathered = compute.elements(gathered);
      compute.zero(chunk.gathered.get(), gathered, nullptr);  // padding is sent too
    }
    if (shape_.training) gateGradient_ = compute.elements(gateGradientSize());
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    // Once all chunks have started `input` is not needed, so output may be the same.
    const moecclResult_t result = overlap(
        output, stream,
        [&](Chunk& chunk) {
          const void* const tokens = compute_.at(input, firstElement(groups_.mp.rank, chunk));
          chunk.router->routeChunk(weights.gate, drawOf(step, groups_.world.rank), tokens,
                                   groups_.mp.rank, chunk.number, sums, chunk.stream);
          chunk.router->scatter(tokens, shape_.chunkSlots(), chunk.places.rows(), chunk.stream);
        },
        [&](Chunk& chunk) { runExperts(weights, chunk.places, rowsPerExpert(), chunk.stream); },
        [&](Chunk& chunk, void* part) {
          chunk.places.keepResults(chunk.stream);
          chunk.router->combine(chunk.places.rows(), shape_.chunkSlots(), part, chunk.stream);
        });
    return result == moecclSuccess ? gatherSums(sums, stream) : result;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    compute_.zero(gateGradient_.get(), gateGradientSize(), stream);
    const moecclResult_t result = overlap(
        inputGradient, stream,
        [&](Chunk& chunk) {
          chunk.router->combineBackward(
              chunk.places.keptResults(),
              compute_.at(outputGradient, firstElement(groups_.mp.rank, chunk)),
              shape_.chunkSlots(), chunk.places.rows(), chunk.stream);
        },
        [&](Chunk& chunk) {
          runExpertsBackward(weights, gradients, chunk.places, rowsPerExpert(), chunk.stream);
        },
        [&](Chunk& chunk, void* part) {
          chunk.router->scatterBackward(chunk.places.rows(), shape_.chunkSlots(), part,
                                        chunk.stream);
          chunk.router->gateBackward(weights.gate, sumGradients, partialGradients(), part,
                                     chunk.stream);
        });
    return result == moecclSuccess ? addGateGradient(gradients.gate, stream) : result;
  }

 private:
  // Each chunk through `fill`, dispatch, `experts`, combine, `finish`, which writes the caller's part of
  // it, and MP-AllGather, into `batch`, as drawn above. On failure too nothing is under way afterwards.
  template <typename Fill, typename Experts, typename Finish>
  moecclResult_t overlap(void* batch, moecclStream_t stream, Fill fill, Experts experts,
                         Finish finish) {
    for (Chunk& chunk : chunks_) chunk.stream = chunk.ownStream ? chunk.ownStream->get() : stream;
    const moecclResult_t result = pipeline(batch, fill, experts, finish);
    for (Chunk& chunk : chunks_)
      if (result != moecclSuccess) moecclStreamSynchronize(chunk.stream);
    return result;
  }

  template <typename Fill, typename Experts, typename Finish>
  moecclResult_t pipeline(void* batch, Fill fill, Experts experts, Finish finish) {
    moecclResult_t result = moecclSuccess;
    for (Chunk& chunk : chunks_) {
      fill(chunk);
      result = dispatch(chunk.places, shape_.chunkSlots(), chunk.stream);
      if (result != moecclSuccess) return result;
    }
    for (std::size_t step = 0; step <= chunks_.size(); ++step) {
      if (step < chunks_.size()) {
        Chunk& chunk = chunks_[step];
        result = wait("dispatch", chunk);
        if (result != moecclSuccess) return result;
        experts(chunk);
        result = combine(chunk.places, shape_.chunkSlots(), chunk.stream);
        if (result != moecclSuccess) return result;
      }
      if (step == 0) continue;
      Chunk& chunk = chunks_[step - 1];
      result = wait("combine", chunk);
      if (result != moecclSuccess) return result;
      finish(chunk, partOf(chunk, batch));
      result = gatherParts(chunk, batch);
      if (result != moecclSuccess) return result;
    }
    for (Chunk& chunk : chunks_) {
      result = wait("MP-AllGather", chunk);
      if (result != moecclSuccess) return result;
      spreadParts(chunk, batch);
    }
    return moecclSuccess;
  }

  moecclResult_t wait(const char* phase, const Chunk& chunk) {
    if (compute_.onStreams()) return moecclSuccess;
    return noted(phase, moecclStreamSynchronize(chunk.stream));
  }

  // One query advances all streams; what fails is found by wait.
  void progress() override {
    if (chunks_.size() > 1) moecclStreamQuery(chunks_[0].stream);
  }

  std::int64_t rowsPerExpert() const { return groups_.world.ranks * shape_.chunkSlots(); }

  // Where a rank's part of a chunk begins in a batch.
  std::int64_t firstElement(int part, const Chunk& chunk) const {
    return shape_.firstToken(part, chunk.number) * shape_.embedding;
  }

  // Where the caller's part of a chunk of `batch` is written, and the MP-AllGather finds it.
  void* partOf(const Chunk& chunk, void* batch) const {
    if (!chunk.gathered) return compute_.at(batch, firstElement(groups_.mp.rank, chunk));
    return compute_.at(chunk.gathered.get(),
                       groups_.mp.rank * shape_.chunkTokens() * shape_.embedding);
  }

  moecclResult_t gatherParts(Chunk& chunk, void* batch) {
    return allGatherInPlace("MP-AllGather", groups_.mp,
                            chunk.gathered ? chunk.gathered.get() : batch,
                            shape_.chunkTokens() * shape_.embedding, chunk.stream);
  }

  // Copies what has been gathered to where it belongs, without padding.
  void spreadParts(const Chunk& chunk, void* batch) const {
    for (int part = 0; part < groups_.mp.ranks && chunk.gathered; ++part) {
      const std::int64_t first = firstElement(part, chunk);
      const std::int64_t count = shape_.chunkTokens() * shape_.embedding;
      compute_.copy(compute_.at(batch, first), compute_.at(chunk.gathered.get(), part * count),
                    std::min(shape_.tokens * shape_.embedding - first, count), chunk.stream);
    }
  }

  std::int64_t gateMatrix() const { return shape_.embedding * shape_.experts; }
  bool isNoisy() const { return shape_.gate.kind == gates::Kind::noisy; }
  std::int64_t gateGradientSize() const {
    return elementCount({isNoisy() ? 2 : 1, shape_.embedding, shape_.experts});
  }

  // What the caller's part adds to the gradients of the gate.
  GateGradients partialGradients() {
    void* const gate = gateGradient_.get();
    return {gate, isNoisy() ? compute_.at(gate, gateMatrix()) : nullptr};
  }

  // All ranks of the MP group take part, whichever of them want the gradient.
  moecclResult_t addGateGradient(const GateGradients& sums, moecclStream_t stream) {
    void* const gate = gateGradient_.get();
    if (groups_.mp.ranks > 1) {
      const moecclResult_t result = allReduce("MP-AllReduce of the gate's gradient", groups_.mp,
                                              gate, gate, gateGradientSize(), stream);
      if (result != moecclSuccess) return result;
    }
    const GateGradients partial = partialGradients();
    if (sums.gate != nullptr) compute_.add(sums.gate, partial.gate, gateMatrix(), stream);
    if (sums.noise != nullptr) compute_.add(sums.noise, partial.noise, gateMatrix(), stream);
    return moecclSuccess;
  }

  moecclResult_t gatherSums(BatchSums& sums, moecclStream_t stream) {
    if (groups_.mp.ranks == 1) return moecclSuccess;
    return noted("MP-AllGather of the gate's sums",
                 moecclAllGather(sums.row(groups_.mp.rank), sums.rows(),
                                 static_cast<std::size_t>(sums.rowSize()), moecclFloat64,
                                 groups_.mp.comm, stream));
  }

  std::deque<Chunk> chunks_;  // they cannot be moved
  Memory gateGradient_;       // of the gate, and of its noise, by the caller's part
};

}  // namespace

std::unique_ptr<Schedule> s1Schedule(const Groups& groups, Compute& compute) {
  return std::make_unique<S1>(groups, compute);
}

}  // namespace moeccl

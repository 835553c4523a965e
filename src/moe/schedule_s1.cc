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
#include <vector>

#include "src/moe/schedule.h"
#include "src/moe/stream.h"

namespace moeccl {
namespace {

struct Chunk {
  Chunk(const LayerShape& shape, std::int64_t chunkNumber)
      : number(chunkNumber),
        router(shape, shape.chunkTokens(), shape.training),
        places(
            elementCount({shape.experts, shape.grid.nEsp, shape.chunkSlots(), shape.embedding})) {
    if (shape.training)
      places.keepForBackward(elementCount({shape.experts, shape.chunkSlots(), shape.embedding}));
  }

  // Null: there is but one chunk, and calls complete before they return.
  moecclStream_t stream() const { return ownStream ? ownStream->get() : nullptr; }

  std::int64_t number;
  Router router;
  Places places;
  std::optional<OwnStream> ownStream;
  // [N_MP][chunk tokens][embedding], where the caller's batch has no room for that as it comes.
  std::vector<float> gathered;
};

class S1 final : public Schedule {
 public:
  S1(const LayerShape& shape, const Groups& groups) : Schedule(shape, groups) {
    const bool fits = shape.chunks == 1 && shape.paddedTokens() == shape.tokens;
    for (std::int64_t number = 0; number < shape.chunks; ++number) {
      Chunk& chunk = chunks_.emplace_back(shape, number);
      if (shape.chunks > 1) chunk.ownStream.emplace(groups.world.comm);
      if (shape.grid.nMp > 1 && !fits)
        chunk.gathered.resize(static_cast<std::size_t>(
            elementCount({shape.grid.nMp, shape.chunkTokens(), shape.embedding})));
    }
    if (shape.training)
      gateGradient_.resize(static_cast<std::size_t>(
          elementCount({shape.embedding, shape.experts, isNoisy() ? 2 : 1})));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                         float* output, BatchSums& sums) override {
    // Once all chunks have started `input` is not needed, so output may be the same.
    const moecclResult_t result = overlap(
        output,
        [&](Chunk& chunk) {
          const float* const tokens = input + firstElement(groups_.mp.rank, chunk);
          chunk.router.routeChunk(weights.gate, drawOf(step, groups_.world.rank), tokens,
                                  groups_.mp.rank, chunk.number, sums);
          chunk.router.scatter(tokens, shape_.chunkSlots(), chunk.places.rows());
        },
        [&](Chunk& chunk) { runExperts(weights, chunk.places, rowsPerExpert()); },
        [&](Chunk& chunk, float* part) {
          chunk.places.keepResults();
          chunk.router.combine(chunk.places.rows(), shape_.chunkSlots(), part);
        });
    return result == moecclSuccess ? gatherSums(sums) : result;
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    std::ranges::fill(gateGradient_, 0.0f);
    const moecclResult_t result = overlap(
        inputGradient,
        [&](Chunk& chunk) {
          chunk.router.combineBackward(chunk.places.keptResults(),
                                       outputGradient + firstElement(groups_.mp.rank, chunk),
                                       shape_.chunkSlots(), chunk.places.rows());
        },
        [&](Chunk& chunk) {
          runExpertsBackward(weights, gradients, chunk.places, rowsPerExpert());
        },
        [&](Chunk& chunk, float* part) {
          chunk.router.scatterBackward(chunk.places.rows(), shape_.chunkSlots(), part);
          chunk.router.gateBackward(weights.gate, sumGradients, partialGradients(), part);
        });
    return result == moecclSuccess ? addGateGradient(gradients.gate) : result;
  }

 private:
  // Each chunk through `fill`, dispatch, `experts`, combine, `finish`, which writes the caller's part of
  // it, and MP-AllGather, into `batch`, as drawn above. On failure too nothing is under way afterwards.
  template <typename Fill, typename Experts, typename Finish>
  moecclResult_t overlap(float* batch, Fill fill, Experts experts, Finish finish) {
    const moecclResult_t result = pipeline(batch, fill, experts, finish);
    for (Chunk& chunk : chunks_)
      if (result != moecclSuccess) moecclStreamSynchronize(chunk.stream());
    return result;
  }

  template <typename Fill, typename Experts, typename Finish>
  moecclResult_t pipeline(float* batch, Fill fill, Experts experts, Finish finish) {
    moecclResult_t result = moecclSuccess;
    for (Chunk& chunk : chunks_) {
      fill(chunk);
      result = dispatch(chunk.places, shape_.chunkSlots(), chunk.stream());
      if (result != moecclSuccess) return result;
    }
    for (std::size_t step = 0; step <= chunks_.size(); ++step) {
      if (step < chunks_.size()) {
        Chunk& chunk = chunks_[step];
        result = wait("dispatch", chunk);
        if (result != moecclSuccess) return result;
        experts(chunk);
        result = combine(chunk.places, shape_.chunkSlots(), chunk.stream());
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
    return noted(phase, moecclStreamSynchronize(chunk.stream()));
  }

  // One query advances all streams; what fails is found by wait.
  void progress() override {
    if (chunks_.size() > 1) moecclStreamQuery(chunks_[0].stream());
  }

  std::int64_t rowsPerExpert() const { return groups_.world.ranks * shape_.chunkSlots(); }

  // Where a rank's part of a chunk begins in a batch.
  std::int64_t firstElement(int part, const Chunk& chunk) const {
    return shape_.firstToken(part, chunk.number) * shape_.embedding;
  }

  // Where the caller's part of a chunk of `batch` is written, and the MP-AllGather finds it.
  float* partOf(Chunk& chunk, float* batch) const {
    if (chunk.gathered.empty()) return batch + firstElement(groups_.mp.rank, chunk);
    return chunk.gathered.data() + groups_.mp.rank * shape_.chunkTokens() * shape_.embedding;
  }

  moecclResult_t gatherParts(Chunk& chunk, float* batch) {
    return allGatherInPlace("MP-AllGather", groups_.mp,
                            chunk.gathered.empty() ? batch : chunk.gathered.data(),
                            shape_.chunkTokens() * shape_.embedding, chunk.stream());
  }

  // Copies what has been gathered to where it belongs, without padding.
  void spreadParts(const Chunk& chunk, float* batch) const {
    for (int part = 0; part < groups_.mp.ranks && !chunk.gathered.empty(); ++part) {
      const std::int64_t first = firstElement(part, chunk);
      const std::int64_t count = shape_.chunkTokens() * shape_.embedding;
      std::copy_n(chunk.gathered.data() + part * count,
                  std::min(shape_.tokens * shape_.embedding - first, count), batch + first);
    }
  }

  std::int64_t gateMatrix() const { return shape_.embedding * shape_.experts; }
  bool isNoisy() const { return shape_.gate.kind == gates::Kind::noisy; }

  // What the caller's part adds to the gradients of the gate.
  GateGradients partialGradients() {
    float* const gate = gateGradient_.data();
    return {gate, isNoisy() ? gate + gateMatrix() : nullptr};
  }

  // All ranks of the MP group take part, whichever of them want the gradient.
  moecclResult_t addGateGradient(const GateGradients& sums) {
    if (groups_.mp.ranks > 1) {
      const moecclResult_t result =
          moecclAllReduce(gateGradient_.data(), gateGradient_.data(), gateGradient_.size(),
                          moecclFloat32, moecclSum, groups_.mp.comm, nullptr);
      if (noted("MP-AllReduce of the gate's gradient", result) != moecclSuccess) return result;
    }
    const auto add = [&](float* sum, std::int64_t begin) {
      for (std::int64_t i = 0; i < gateMatrix() && sum != nullptr; ++i)
        sum[i] += gateGradient_[begin + i];
    };
    add(sums.gate, 0);
    add(sums.noise, gateMatrix());
    return moecclSuccess;
  }

  moecclResult_t gatherSums(BatchSums& sums) {
    if (groups_.mp.ranks == 1) return moecclSuccess;
    return noted("MP-AllGather of the gate's sums",
                 moecclAllGather(sums.row(groups_.mp.rank), sums.rows(),
                                 static_cast<std::size_t>(sums.rowSize()), moecclFloat64,
                                 groups_.mp.comm, nullptr));
  }

  std::deque<Chunk> chunks_;         // they cannot be moved
  std::vector<float> gateGradient_;  // of the gate, and of its noise, by the caller's part
};

}  // namespace

std::unique_ptr<Schedule> s1Schedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<S1>(shape, groups);
}

}  // namespace moeccl

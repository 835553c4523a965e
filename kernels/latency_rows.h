// Latency mode of token routing on a GPU: what a rank does between the exchanges of a dispatch and
// of a combine, from choices that no host has seen, so that its calls can be captured. All ranks
// have room for the same number of tokens of each source, the bucket; what is not used is moved
// too.
//
//   a region   what one source dispatches: experts [bucket][k], weights [bucket][k], rows [bucket].
//              Regions lie by slot: relay by relay of the rank's node, then by source
//   a place    of a choice of one of the rank's own experts: by expert, then by source, then by
//   token stage      what experts made, for the way back: [slot][bucket][most], the j-th of a
//   token's
//              choices of experts at one position by expert
//   terms      the same as it comes from other ranks, one after another
//   sums       of a source and a node, this rank being their relay: [sums][bucket]
//   back       of the rank's own tokens: [nodes][bucket]
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "moeccl/moeccl.h"

namespace moeccl {

// Addresses are the GPU's.
struct LatencyRows {
  // The same in all calls of a pass.
  std::int32_t ranks, nodes, rank, choices, experts, positions, shards, firstExpert, localExperts;
  std::int32_t sums;
  const std::int32_t* slotOf;                          // [ranks] by source
  const std::int32_t* holders;                         // [positions][shards] ranks
  const std::int32_t* nodeOf;                          // [ranks]
  const std::int32_t *sumSource, *sumNode, *sumIndex;  // [sums]; the last: among the node's
  const std::int64_t* termFirst;  // [ranks] rows for one token of what comes before
  std::int64_t termRows;          // of all
  std::int32_t* places;           // [ranks][bucket][choices], of own experts
  std::int64_t* counts;           // [localExperts][ranks]
  std::int64_t* firsts;           // the same: where they begin
  std::int64_t* begins;           // [localExperts + 1]
  std::int64_t* loads;            // [experts + 1] choices of this rank's tokens, and rows
  std::byte *regions, *stage, *terms, *sumRows, *back;
  bool weighted;
  moecclDataType_t datatype;  // of a combine
  std::size_t combineBytes, rowBytes;

  // Set anew by Begin, and by the calls after it.
  std::int64_t bucket, tokens;
  std::size_t headerBytes, regionBytes;
  const std::int32_t* chosen;
  const float* weights;
  const std::byte* input;
  std::byte* output;

  // The functions below are about a token of a source.
  MOECCL_DEVICE std::byte* region(std::int32_t source) const {
    return regions + static_cast<std::size_t>(slotOf[source]) * regionBytes;
  }
  MOECCL_DEVICE std::int32_t* expertsOf(std::int32_t source, std::int64_t token) const {
    return reinterpret_cast<std::int32_t*>(region(source)) + token * choices;
  }
  MOECCL_DEVICE float* weightsOf(std::int32_t source, std::int64_t token) const {
    return reinterpret_cast<float*>(expertsOf(source, bucket)) + token * choices;
  }
  MOECCL_DEVICE bool isOwn(std::int32_t expert) const {
    return expert >= firstExpert && expert < firstExpert + localExperts;
  }
  MOECCL_DEVICE std::int64_t choiceAt(std::int32_t source, std::int64_t token,
                                      std::int32_t choice) const {
    return (source * bucket + token) * choices + choice;
  }
  // The first experts % positions positions hold one more.
  MOECCL_DEVICE std::int32_t positionOf(std::int32_t expert) const {
    const std::int32_t share = experts / positions, longer = experts % positions;
    const std::int32_t inLonger = longer * (share + 1);
    return expert < inLonger ? expert / (share + 1) : longer + (expert - inLonger) / share;
  }
  MOECCL_DEVICE std::int64_t mostAt(std::int32_t position) const {
    const std::int32_t held = experts / positions + (position < experts % positions ? 1 : 0);
    return held < choices ? held : choices;
  }
  MOECCL_DEVICE std::int64_t most() const {
    return localExperts < choices ? localExperts : choices;
  }
  MOECCL_DEVICE std::int64_t stageRow(std::int32_t source, std::int64_t token,
                                      std::int64_t index) const {
    return (slotOf[source] * bucket + token) * most() + index;
  }

  // Which choice of the token is this expert; -1: none.
  MOECCL_DEVICE std::int32_t find(std::int32_t source, std::int64_t token,
                                  std::int32_t expert) const {
    const std::int32_t* const its = expertsOf(source, token);
    for (std::int32_t c = 0; c < choices; ++c)
      if (its[c] == expert) return c;
    return -1;
  }
  // How many of the token's choices at the expert's position come before it.
  MOECCL_DEVICE std::int64_t before(std::int32_t source, std::int64_t token,
                                    std::int32_t expert) const {
    const std::int32_t* const its = expertsOf(source, token);
    const std::int32_t position = positionOf(expert);
    std::int64_t count = 0;
    for (std::int32_t c = 0; c < choices; ++c)
      count += its[c] >= 0 && its[c] < expert && positionOf(its[c]) == position;
    return count;
  }
  // Whether a shard of the expert is on the node.
  MOECCL_DEVICE bool isOn(std::int32_t node, std::int32_t expert) const {
    const std::int32_t* const ranksOf = holders + positionOf(expert) * shards;
    for (std::int32_t shard = 0; shard < shards; ++shard)
      if (nodeOf[ranksOf[shard]] == node) return true;
    return false;
  }
  MOECCL_DEVICE bool has(std::int64_t token, std::int32_t node) const {
    const std::int32_t* const its = expertsOf(rank, token);
    for (std::int32_t c = 0; c < choices; ++c)
      if (its[c] >= 0 && isOn(node, its[c])) return true;
    return false;
  }

  // As the header of a region has them: experts that are none, and those that a token has already,
  // are -1.
  MOECCL_DEVICE void writeChoices(std::int64_t token) const {
    std::int32_t* const to = expertsOf(rank, token);
    float* const with = weightsOf(rank, token);
    for (std::int32_t c = 0; c < choices; ++c) {
      const std::int64_t at = token * choices + c;
      std::int32_t expert = token < tokens ? chosen[at] : -1;
      if (expert >= experts) expert = -1;
      for (std::int32_t other = 0; other < c; ++other)
        if (to[other] == expert) expert = -1;
      to[c] = expert < 0 ? -1 : expert;
      with[c] = weighted && token < tokens ? weights[at] : 1.0f;
    }
  }
  // Calls function(row, weight) for the terms of sum `index` of a token, in their order; returns
  // where the sum goes.
  template <typename Function>
  MOECCL_DEVICE std::byte* eachTerm(std::int64_t index, std::int64_t token,
                                    const Function& function) const {
    const std::int32_t source = sumSource[index], node = sumNode[index];
    const std::int32_t* const its = expertsOf(source, token);
    const float* const with = weightsOf(source, token);
    for (std::int32_t last = -1;;) {
      std::int32_t choice = -1;
      for (std::int32_t c = 0; c < choices; ++c)
        if (its[c] > last && (choice < 0 || its[c] < its[choice])) choice = c;
      if (choice < 0) break;
      last = its[choice];
      const std::int32_t position = positionOf(last);
      const std::int64_t order = before(source, token, last);
      for (std::int32_t shard = 0; shard < shards; ++shard) {
        const std::int32_t holder = holders[position * shards + shard];
        if (nodeOf[holder] != node) continue;
        const std::int64_t row =
            holder == rank ? stageRow(source, token, order)
                           : termFirst[holder] * bucket +
                                 (sumIndex[index] * bucket + token) * mostAt(position) + order;
        function((holder == rank ? stage : terms) + static_cast<std::size_t>(row) * combineBytes,
                 weighted ? with[choice] : 1.0f);
      }
    }
    const std::int64_t row = source == rank ? node * bucket + token : index * bucket + token;
    return (source == rank ? back : sumRows) + static_cast<std::size_t>(row) * combineBytes;
  }
};

// In this order: of a Set the first, of a Dispatch the next four, of a Combine the rest.
enum class LatencyStep : std::uint8_t {
  choices,  // -> the rank's own region
  counts,
  begins,  // counts -> firsts, begins
  places,
  rows,    // regions -> output, by places
  pack,    // input, by places -> stage
  sums,    // stage and terms -> sums and back
  finish,  // back -> output
};

namespace cuda {

// On a stream of a GPU. Throws Error.
void runLatency(LatencyStep step, const LatencyRows& rows, void* stream);

}  // namespace cuda
}  // namespace moeccl

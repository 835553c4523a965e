// The numbers of a layer: its config, checked against the grid, and all that follows from them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/expert.h"
#include "kernels/gates/gate.h"
#include "moeccl/moe.h"
#include "src/model/sizes.h"

namespace moeccl {

// The tokens of one MP group, a batch, with the padding at its end:
//
//     |<------- part 0 ------->|<------- part 1 ------->|     N_MP parts: S1 gates one per rank
//     | group 0   | group 1    | group 2   | group 3    |     capacity groups
//     | tokens ............................ | padding   |
//
// Parts and groups begin at a common multiple; groups nest in parts under S1 alone. S1 may cut a
// part in chunks, which are as many whole groups each. Without capacity each chunk is a group, of a
// part or, where the schedule splits no tokens, of the batch.
struct LayerShape {
  std::int64_t tokens;  // without padding
  std::int64_t embedding;
  std::int32_t experts;
  std::int32_t
      choices;  // places for the choices of a token: topK, or with expert choice all experts
  Activation activation;
  moecclDataType_t datatype;  // of tokens and weights
  std::int64_t elementBytes;
  moecclSchedule_t schedule;  // never auto
  moecclGridShape_t grid;
  bool training;  // forward keeps what backward needs

  std::int64_t localExperts;  // per EP rank
  std::int64_t localHidden;   // per ESP rank
  std::int64_t residual;      // hidden size of the residual branch; 0: none
  std::int64_t groups;        // capacity groups of a batch
  std::int64_t groupTokens;   // with padding
  std::int64_t groupSlots;    // places per expert and group
  std::int64_t partTokens;    // with padding
  std::int64_t chunks;        // of a part, or of the batch
  bool dropless;              // groups have places for all choices; memory is not sized by them
  bool routed;                // rows go by token routing

  gates::Config gate;
  std::int64_t seed;  // of what is random in training

  std::int64_t capacity() const { return groups * groupSlots; }
  std::int64_t paddedTokens() const { return groups * groupTokens; }
  // Tokens of a part's chunk and of the batch's, with padding.
  std::int64_t chunkTokens() const { return partTokens / chunks; }
  std::int64_t batchChunkTokens() const { return paddedTokens() / chunks; }
  // Places per expert.
  std::int64_t partSlots() const { return capacity() / grid.nMp; }
  std::int64_t chunkSlots() const { return partSlots() / chunks; }
  // Columns of an expert's first matrix.
  std::int64_t innerOf(std::int64_t hidden) const { return innerWidth(activation, hidden); }
  // The first token of a part, in the batch; behind the last token when the part is nothing but
  // padding.
  std::int64_t firstToken(int part) const { return std::min(tokens, part * partTokens); }
};

// The config's schedule, or what the value of MOECCL_SCHEDULE says when it is neither null nor "".
// Throws Error (InvalidArgument).
moecclSchedule_t requestedSchedule(const moecclMoeConfig_t& config, const char* environment);

// Whether a layer of that shape, whatever its schedule, can follow this one, which is not auto.
bool offers(moecclSchedule_t schedule, const LayerShape& shape);

// Whether a layer of that shape can have its rows routed under this schedule, which is not auto.
bool routesUnder(moecclSchedule_t schedule, const LayerShape& shape);
// Under any.
bool routesSomehow(const LayerShape& shape);

// `schedule`: auto only where nobody needs it. Throws Error (InvalidArgument), which names the
// field, its value and what would be right.
LayerShape layerShape(const moecclMoeConfig_t& config, moecclSchedule_t schedule,
                      const moecclGridShape_t& grid);

// The same layer cut in so many chunks, which its schedule can do.
LayerShape inChunks(LayerShape shape, std::int64_t chunks);

// The same as a schedule knows them. `schedule`: of one of the layer's passes.
schedules::Sizes sizesOf(const LayerShape& shape, const schedules::Schedule& schedule);

}  // namespace moeccl

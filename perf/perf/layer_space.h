// The layers that are measured: drawn from Parm's table III, and made smaller for this machine.
#pragma once

#include <moeccl/model.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeccl::perf::layers {

// A layer on a grid. Symbols as in Parm's table I.
struct Layer {
  moecclGridShape_t grid;
  std::int64_t samples;    // B
  std::int64_t length;     // L, tokens per sample
  std::int64_t embedding;  // M
  std::int64_t hidden;     // H
  std::int64_t experts;    // E
  std::int64_t topK;       // k, never more than E
  double capacityFactor;   // f; 0: dropless

  std::int64_t tokens() const { return samples * length; }
  bool isDropless() const { return capacityFactor == 0; }
  // Rows that experts get, over those that were chosen.
  double rowsPerChoice() const { return isDropless() ? 1 : capacityFactor; }
  // Places per expert, T, with as many capacity groups as N_MP (moeccl/moe.h); dropless: rows, on
  // average.
  std::int64_t capacity() const;
  // The multiplications of the layer's experts, with which its time grows.
  double work() const;
  moecclMoeConfig_t config(moecclSchedule_t schedule, moecclPass_t pass) const;

  bool operator==(const Layer& other) const;
};

// The largest --scale: the smallest layers have embeddings and hidden sizes of 8 then.
inline constexpr int kLargestScale = 128;

// `count` layers for `ranks` ranks. Every N_MP and N_ESP of table III that divides `ranks` is taken
// once before any is taken again; all else is drawn independently: B, L, M / N_ESP, H / N_ESP, f, E
// / N_EP from {1, 2}, and k from {1, 2} unless `topK` is above 0. Nothing that is given changes
// what else is drawn.
std::vector<Layer> drawLayers(int ranks, int count, std::uint64_t seed, std::int64_t topK);

// L, M and H divided by `scale`, a power of two up to kLargestScale.
Layer scaled(const Layer& layer, int scale);

// What one rank allocates for a layer under a schedule, roughly: the matrices of places, what
// collectives keep on their way, the experts' hidden units, and what is kept for a backward pass.
double bytesOfSchedule(const Layer& layer, moecclSchedule_t schedule, moecclPass_t pass);
// What one rank allocates for a layer once, whatever the schedules: weights, tokens and results.
double bytesOfData(const Layer& layer, moecclPass_t pass);

}  // namespace moeccl::perf::layers

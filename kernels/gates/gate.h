// The gates of Mixture-of-Experts layers: which experts a token goes to, with what weight, the loss
// that keeps experts evenly loaded, and the gradients of both. All matrices are row-major.
//
// A layer goes through these steps, of which only the second and the fourth look beyond one token:
//
//   forward    of any part of the batch: logits, choices and weights, sums per expert
//   place      of whole capacity groups: which choices are kept, and where
//              (the caller adds the sums of all parts, always in the same order)
//   loss       from the sums of the whole batch, with its gradient by them
//   backward   of any part, from the gradients of the weights and of the sums
//
// However a batch is cut into parts, its choices, weights and places have the same bits, random
// ones included: they depend on the token, its index in the batch and its capacity group alone.
// Ranks that gate the same tokens agree on these bits when they run the same C library, on CPUs for
// which it takes the same code; softmax chooses and places alike even where exp differs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/gates/random.h"

namespace moeccl::gates {

enum class Kind {
  softmax,       // k experts by softmax; k = 1: Switch. Loss of Switch
  noisy,         // noisy top-k (Shazeer 2017). Losses of importance and load
  gshard,        // two experts, the second at random (GShard)
  expertChoice,  // experts choose tokens (Zhou 2022). No loss
  sigmoid        // k experts of few groups by sigmoid and bias (DeepSeek-V3). Loss per sequence
};

struct Config {
  Kind kind = Kind::softmax;
  std::int64_t batchTokens = 0;  // of the whole batch, without padding
  std::int64_t embedding = 0;
  std::int32_t experts = 0;
  std::int32_t choices = 0;  // per token, from 1 to experts. gshard: 2; expertChoice: ignored
  std::int64_t capacityTokens = 0;  // per capacity group; the last groups may have fewer
  std::int64_t capacitySlots = 0;   // places per expert and capacity group
  // Where choices of a token are dropped, weights of the others have the sum that all had. Not the
  // probabilities of one choice, nor with expertChoice.
  bool renormalize = false;

  // softmax: inputs are multiplied by uniform noise from 1 - jitter to 1 + jitter; 0 to 1.
  double jitter = 0;
  // noisy: how much of the loss each of its two parts is.
  double importanceWeight = 1;
  double loadWeight = 1;
  // sigmoid: experts lie in expertGroups equal consecutive groups, of which topGroups serve a
  // token.
  std::int32_t expertGroups = 1;
  std::int32_t topGroups = 1;
  double routingScale = 1;          // of the weights
  std::int64_t sequenceTokens = 0;  // the loss is that of each sequence; 0: of the whole batch
};

// "" where all is well; else the first field that is wrong, its value and what would be right.
std::string problem(const Config& config);

// The sum that the weights of a token are to have, whatever is dropped; 0: they are left as they
// are.
MOECCL_DEVICE inline double renormalizedSum(const Config& config) {
  if (!config.renormalize || config.kind == Kind::expertChoice) return 0;
  if (config.kind == Kind::softmax && config.choices == 1) return 0;
  return config.kind == Kind::sigmoid ? config.routingScale : 1;
}
// Choices per token, absent ones included: config.choices, or with expertChoice one for each
// expert.
std::int32_t width(const Config& config);
// Doubles of logits per token.
std::int64_t logitsPerToken(const Config& config);
// Doubles of sums over a batch: assigned [experts], the choices of each expert; kept [experts],
// those with a place; and what the loss is made of. Counts are whole numbers.
std::int64_t sumsSize(const Config& config);

template <typename Real>
struct Parameters {
  const Real* gate;              // [embedding][experts]
  const Real* noise = nullptr;   // [embedding][experts]; noisy needs it, no other reads it
  const double* bias = nullptr;  // [experts], sigmoid alone; null: zero
};

// A part of a batch.
template <typename Real>
struct Part {
  const Real* input;  // [tokens][embedding]
  std::int64_t tokens;
  std::int64_t firstToken;        // index in the batch, without padding
  std::optional<Draw> draw = {};  // without: nothing is random, as in inference
};

// What a gate decides about a part's tokens; the caller's memory.
template <typename Real>
struct Decisions {
  double* logits;        // [tokens][logitsPerToken]
  std::int32_t* chosen;  // [tokens][width]: experts; -1: no choice
  Real* weights;         // [tokens][width]; 0 where there is no choice
};

// The choices as place() has left them, where it renormalizes.
template <typename Real>
struct Kept {
  const std::int64_t* slots;  // as place has set them, like the others
  const Real* weights;
  const double* factors;
};

template <typename Real>
struct Gradients {
  Real* gate;   // as in Parameters, like noise; null: not wanted
  Real* noise;  // null but with noisy
  Real* input;  // as in Part
};

// Changes the bias of the sigmoid gate after a step: by +speed for experts with fewer choices than
// the mean and by -speed for those with more (DeepSeek-V3, section 2.1.2). assigned [experts]: over
// all batches of the step.
void updateBias(const double* assigned, std::int32_t experts, double speed, double* bias);

class Rule;

// Owns what the calls need beside the caller's arrays; they allocate nothing. One call at a time.
// Real: float or double. With NaN or infinite logits choices are valid but arbitrary, weights NaN.
template <typename Real>
class Gate {
 public:
  // problem(config) must be "".
  explicit Gate(const Config& config);
  ~Gate();

  // Sets the decisions and adds to sums [sumsSize]. Equal experts are chosen by rising number.
  void forward(const Parameters<Real>& parameters, const Part<Real>& part,
               const Decisions<Real>& decisions, double* sums);

  // Gives places to the choices of `tokens` tokens, whole consecutive capacity groups (the last
  // may be short), tokens <= groups * capacityTokens. slots [tokens][width]: the place within the
  // expert, group * capacitySlots + 0, 1, ..., or -1 for a choice without a place and for none.
  // used [groups][experts]: places given. Adds to the kept choices of sums. expertChoice: the
  // choices are made here. factors [tokens], where the gate renormalizes, else null: what the
  // weights of the kept choices have been multiplied by.
  void place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, Real* weights,
             std::int64_t* used, std::int64_t* slots, double* factors, double* sums);

  // The loss of a batch from its sums; 0 without tokens. Sets dSums [sumsSize] to the gradient of
  // scale * loss by the sums.
  double loss(const double* sums, double scale, double* dSums) const;

  // Adds to `gradients`. parameters, part, logits and chosen are those of forward and place;
  // dWeights [tokens][width]: gradients of the weights, 0 for choices without a place, any number
  // for absent ones; dSums [sumsSize]: as loss sets it. kept: of these tokens, where the gate
  // renormalizes.
  void backward(const Parameters<Real>& parameters, const Part<Real>& part, const double* logits,
                const std::int32_t* chosen, const Kept<Real>& kept, const Real* dWeights,
                const double* dSums, const Gradients<Real>& gradients);

 private:
  void computeLogits(const Parameters<Real>& parameters, const Part<Real>& part,
                     const std::optional<Random>& random, double* logits);
  void multiplyBlock(const Parameters<Real>& parameters, const Part<Real>& part,
                     const std::optional<Random>& random, std::int64_t begin, std::int64_t count,
                     const Gradients<Real>& gradients);

  Config config_;
  std::unique_ptr<Rule> rule_;
  std::vector<double> row_;                     // [width]
  std::vector<double> dLogits_;                 // [logitsPerToken]
  std::vector<Real> dGateBlock_, dNoiseBlock_;  // [a block's tokens][experts]
  // With jitter alone.
  std::vector<Real> tile_;            // [a tile's tokens][embedding]
  std::vector<Real> block_, dBlock_;  // [a block's tokens][embedding]
  // With expertChoice alone, [capacityTokens].
  std::vector<double> keys_;
  std::vector<std::int64_t> order_;
};

}  // namespace moeccl::gates

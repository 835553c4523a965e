// What lies between the two matrix products of an expert. Real: float or double.
#pragma once

#include <cstdint>

namespace moeccl {

enum class Activation { gelu, relu, swiglu };

// The width of a row before the activation that gives so many hidden values: as many, or with
// swiglu twice as many, a gate and behind it what it gates.
constexpr std::int64_t innerWidth(Activation activation, std::int64_t hidden) {
  return activation == Activation::swiglu ? 2 * hidden : hidden;
}

// values [rows][width] = activation(values + bias), in place, for values [rows][innerWidth]. bias
// [innerWidth] may be null, which is zero.
//
// swiglu is silu(gate) times what is gated, silu(x) = x / (1 + exp(-x)) (Shazeer 2020). For floats
// silu differs from its exact value by at most 2^-20 of that, and its slope by 2^-21; below -87
// both stay what they are at -87.
//
// gelu is x (1 + erf(x / sqrt 2)) / 2. For floats, found without erf, it differs from its exact
// value by at most 2^-20 of that, and its slope by 2^-21; below -13, where neither is 1e-35 away
// from 0, they stay what they are at -13.
template <typename Real>
void activate(Activation activation, const Real* bias, std::int64_t rows, std::int64_t width,
              Real* values);

// As activate; and gradients, [rows][width] of the results, become those of values + bias,
// [rows][innerWidth]. The slope of relu at 0 is 0.
template <typename Real>
void activateBackward(Activation activation, const Real* bias, std::int64_t rows,
                      std::int64_t width, Real* values, Real* gradients);

}  // namespace moeccl

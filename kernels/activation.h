// What lies between the two matrix products of an expert. Real: float or double.
#pragma once

#include <cstdint>

namespace moeccl {

enum class Activation { gelu, relu };

// values [rows][width] = activation(values + bias), in place. bias [width] may be null, which is
// zero.
//
// gelu is x (1 + erf(x / sqrt 2)) / 2. For floats, found without erf, it differs from its exact
// value by at most 2^-20 of that, and its slope by 2^-21; below -13, where neither is 1e-35 away
// from 0, they stay what they are at -13.
template <typename Real>
void activate(Activation activation, const Real* bias, std::int64_t rows, std::int64_t width,
              Real* values);

// As activate; and gradients [rows][width] *= slope of the activation at values + bias. The slope
// of relu at 0 is 0.
template <typename Real>
void activateBackward(Activation activation, const Real* bias, std::int64_t rows,
                      std::int64_t width, Real* values, Real* gradients);

}  // namespace moeccl

// The numbers that the model computes with: float, or double in the program train_double, where
// rounding is too small for a token to choose another expert by it.
#pragma once

#include <moeccl/moeccl.h>

namespace train {

#ifdef TRAIN_DOUBLE
using Real = double;
inline constexpr moecclDataType_t kReal = moecclFloat64;
inline constexpr const char* kRealName = "float64";
#else
using Real = float;
inline constexpr moecclDataType_t kReal = moecclFloat32;
inline constexpr const char* kRealName = "float32";
#endif

}  // namespace train

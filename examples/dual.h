// A number and how fast it changes with some other one. What is computed of such numbers knows its
// slope.
#pragma once

#include <cmath>
#include <numbers>

namespace moe_reference {

struct Dual {
  double value = 0;
  double slope = 0;

  Dual() = default;
  Dual(double constant) : value(constant) {}
  Dual(double here, double there) : value(here), slope(there) {}

  Dual& operator+=(Dual b) { return *this = {value + b.value, slope + b.slope}; }
  Dual& operator*=(Dual b) { return *this = {value * b.value, slope * b.value + value * b.slope}; }
  Dual& operator/=(Dual b) {
    return *this = {value / b.value, (slope * b.value - value * b.slope) / (b.value * b.value)};
  }
};

inline Dual operator-(Dual a) { return {-a.value, -a.slope}; }
inline Dual operator+(Dual a, Dual b) { return a += b; }
inline Dual operator-(Dual a, Dual b) { return a += -b; }
inline Dual operator*(Dual a, Dual b) { return a *= b; }
inline Dual operator/(Dual a, Dual b) { return a /= b; }
inline Dual exp(Dual a) { return {std::exp(a.value), a.slope * std::exp(a.value)}; }
inline Dual log1p(Dual a) { return {std::log1p(a.value), a.slope / (1 + a.value)}; }
inline Dual erf(Dual a) {
  return {std::erf(a.value), a.slope * 2 * std::numbers::inv_sqrtpi * std::exp(-a.value * a.value)};
}

inline double valueOf(double a) { return a; }
inline double valueOf(Dual a) { return a.value; }

}  // namespace moe_reference

// A number and how fast it changes with some other one. What is computed of such numbers knows its
// slope, and how exact both are.
#pragma once

#include <cmath>
#include <numbers>

namespace moe_reference {

struct Dual {
  double value = 0;
  double slope = 0;
  // How far rounding may have moved them, in units of the precision of double: of each operation
  // the result, and what it makes of the errors that its operands have.
  double valueError = 0;
  double slopeError = 0;

  Dual() = default;
  Dual(double constant) : value(constant) {}
  Dual(double here, double there) : value(here), slope(there) {}
  Dual(double here, double there, double errorHere, double errorThere)
      : value(here), slope(there), valueError(errorHere), slopeError(errorThere) {}

  Dual& operator+=(Dual b);
  Dual& operator*=(Dual b);
  Dual& operator/=(Dual b);
};

// A function of a number, given what it is there, and its first and second derivatives.
inline Dual through(Dual a, double here, double first, double second) {
  const double slope = first * a.slope;
  return {
      here, slope, std::abs(here) + std::abs(first) * a.valueError,
      std::abs(slope) + std::abs(first) * a.slopeError + std::abs(second * a.slope) * a.valueError};
}

inline Dual& Dual::operator+=(Dual b) {
  const double here = value + b.value, there = slope + b.slope;
  return *this = {here, there, valueError + b.valueError + std::abs(here),
                  slopeError + b.slopeError + std::abs(there)};
}

inline Dual& Dual::operator*=(Dual b) {
  const double here = value * b.value, left = slope * b.value, right = value * b.slope;
  return *this = {here, left + right,
                  std::abs(here) + std::abs(value) * b.valueError + valueError * std::abs(b.value),
                  std::abs(left) + std::abs(right) + std::abs(slope) * b.valueError +
                      slopeError * std::abs(b.value) + std::abs(value) * b.slopeError +
                      valueError * std::abs(b.slope)};
}

inline Dual& Dual::operator/=(Dual b) {
  const double inverse = 1 / b.value;
  return *this *= through(b, inverse, -inverse * inverse, 2 * inverse * inverse * inverse);
}

inline Dual operator-(Dual a) { return {-a.value, -a.slope, a.valueError, a.slopeError}; }
inline Dual operator+(Dual a, Dual b) { return a += b; }
inline Dual operator-(Dual a, Dual b) { return a += -b; }
inline Dual operator*(Dual a, Dual b) { return a *= b; }
inline Dual operator/(Dual a, Dual b) { return a /= b; }
inline Dual exp(Dual a) {
  const double here = std::exp(a.value);
  return through(a, here, here, here);
}
inline Dual log1p(Dual a) {
  const double first = 1 / (1 + a.value);
  return through(a, std::log1p(a.value), first, -first * first);
}
inline Dual erfc(Dual a) {
  const double first = -2 * std::numbers::inv_sqrtpi * std::exp(-a.value * a.value);
  return through(a, std::erfc(a.value), first, -2 * a.value * first);
}

inline double valueOf(double a) { return a; }
inline double valueOf(Dual a) { return a.value; }

}  // namespace moe_reference

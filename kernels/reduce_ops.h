// What reductions are made of, on hosts and on GPUs: how an element is decoded to the type in which
// it is combined, and how two are.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device.h"
#include "kernels/small_float.h"
#include "moeccl/moeccl.h"

namespace moeccl {

template <typename T>
struct Unchanged {
  using Bits = T;
  MOECCL_DEVICE static T decode(T value) { return value; }
  MOECCL_DEVICE static T encode(T value) { return value; }
};

struct Sum {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      // Unsigned arithmetic: overflow wraps instead of being undefined.
      using Wrapping = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      // Not of a smaller type: those become int, whose overflow is undefined.
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// Operations on bits. Floats have no bits for this purpose: they stay as they are.
struct BitAnd {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, [[maybe_unused]] T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(a & b);
    else
      return a;
  }
};

struct BitOr {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, [[maybe_unused]] T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(a | b);
    else
      return a;
  }
};

struct BitXor {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, [[maybe_unused]] T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(a ^ b);
    else
      return a;
  }
};

// A NaN b fails the comparison and is taken; a NaN a has to be asked for.
struct Max {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  MOECCL_DEVICE static T combine(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

// Calls function(Format{}) for the format of `datatype`; an unknown one does nothing.
template <typename Function>
void withFormat(moecclDataType_t datatype, Function function) {
  switch (datatype) {
    case moecclInt8:
      return function(Unchanged<std::int8_t>{});
    case moecclUint8:
      return function(Unchanged<std::uint8_t>{});
    case moecclInt32:
      return function(Unchanged<std::int32_t>{});
    case moecclUint32:
      return function(Unchanged<std::uint32_t>{});
    case moecclInt64:
      return function(Unchanged<std::int64_t>{});
    case moecclUint64:
      return function(Unchanged<std::uint64_t>{});
    case moecclFloat16:
      return function(Float16{});
    case moecclFloat32:
      return function(Unchanged<float>{});
    case moecclFloat64:
      return function(Unchanged<double>{});
    case moecclBfloat16:
      return function(Bfloat16{});
    case moecclFloat8e4m3:
      return function(Float8e4m3{});
    case moecclFloat8e5m2:
      return function(Float8e5m2{});
    case moecclInt16:
      return function(Unchanged<std::int16_t>{});
    case moecclUint16:
      return function(Unchanged<std::uint16_t>{});
    default:
      return;
  }
}

// Calls function(Op{}); an unknown one does nothing.
template <typename Function>
void withOp(moecclRedOp_t op, Function function) {
  switch (op) {
    case moecclSum:
      return function(Sum{});
    case moecclMax:
      return function(Max{});
    case moecclMin:
      return function(Min{});
    case moecclProd:
      return function(Product{});
    case moecclBitAnd:
      return function(BitAnd{});
    case moecclBitOr:
      return function(BitOr{});
    case moecclBitXor:
      return function(BitXor{});
    default:
      return;
  }
}

// One of them that is chosen while it runs, for code that need not be there seven times.
struct AnyOp {
  moecclRedOp_t op;

  template <typename T>
  MOECCL_DEVICE T combine(T a, T b) const {
    return op == moecclSum      ? Sum::combine(a, b)
           : op == moecclMax    ? Max::combine(a, b)
           : op == moecclMin    ? Min::combine(a, b)
           : op == moecclProd   ? Product::combine(a, b)
           : op == moecclBitAnd ? BitAnd::combine(a, b)
           : op == moecclBitOr  ? BitOr::combine(a, b)
                                : BitXor::combine(a, b);
  }
};

// Those that deserve code of their own on GPUs.
template <typename Op>
inline constexpr bool kIsFrequent =
    std::is_same_v<Op, Sum> || std::is_same_v<Op, Max> || std::is_same_v<Op, Min>;

// An element of a sum becomes that of an average.
template <typename Format>
MOECCL_DEVICE typename Format::Bits divided(typename Format::Bits bits, std::int64_t divisor) {
  const auto value = Format::decode(bits);
  using Value = std::remove_cv_t<decltype(value)>;
  if constexpr (!std::is_integral_v<Value>)
    return Format::encode(value / static_cast<Value>(divisor));
  else if constexpr (std::is_signed_v<Value>)
    return Format::encode(static_cast<Value>(value / divisor));
  else
    return Format::encode(static_cast<Value>(value / static_cast<std::uint64_t>(divisor)));
}

}  // namespace moeccl

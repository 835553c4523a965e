// Computes the bytes of a route's rows: as a dispatch takes them, as they are sent, and as a
// combine does.
#include "src/route/route_shape.h"

#include "kernels/quantise.h"
#include "kernels/reduce.h"

namespace moeccl {

std::size_t RouteShape::rowBytes() const {
  const auto elements = static_cast<std::size_t>(hidden);
  const std::size_t bytes = elements * sizeOf(tokenDatatype);
  return sizeOf(tokenDatatype) > 1 ? bytes : quantisedBytes(elements);
}

std::size_t RouteShape::combineRowBytes() const {
  return static_cast<std::size_t>(hidden) * sizeOf(datatype);
}

std::size_t RouteShape::sentRowBytes() const {
  return quantises() ? quantisedBytes(static_cast<std::size_t>(hidden)) : rowBytes();
}

}  // namespace moeccl

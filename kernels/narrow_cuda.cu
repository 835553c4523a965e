// Widens elements of 16 bits to float32 on a GPU, and adds float32 to them, one thread for an
// element.
#include <algorithm>

#include "kernels/float_formats.h"
#include "kernels/launch_cuda.h"
#include "kernels/narrow.h"

namespace moeccl::cuda {
namespace {

template <typename Body>
__global__ void __launch_bounds__(kThreads) elementKernel(std::int64_t count, Body body) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads)
    body(i);
}

// Bodies are structures, as extended lambdas would need a compiler flag of their own.
template <typename Format>
struct Widen {
  const typename Format::Bits* from;
  float* to;
  __device__ void operator()(std::int64_t i) const { to[i] = Format::decode(from[i]); }
};

template <typename Format>
struct AddNarrowed {
  const float* from;
  typename Format::Bits* to;
  __device__ void operator()(std::int64_t i) const {
    to[i] = Format::encode(Format::decode(to[i]) + from[i]);
  }
};

template <typename Body>
void overElements(const char* what, std::int64_t count, void* stream, Body body) {
  if (count == 0) return;
  launchKernel(what, elementKernel<Body>,
               gridOf(static_cast<std::uint64_t>((count - 1) / kThreads + 1)), kThreads, stream,
               count, body);
}

}  // namespace

void widen(moecclDataType_t datatype, const void* from, std::int64_t count, float* to,
           void* stream) {
  withFloatFormat("elements", datatype, [&]<typename Format>(Format) {
    overElements("widening elements", count, stream,
                 Widen<Format>{static_cast<const typename Format::Bits*>(from), to});
  });
}

void addNarrowed(moecclDataType_t datatype, const float* from, std::int64_t count, void* to,
                 void* stream) {
  withFloatFormat("elements", datatype, [&]<typename Format>(Format) {
    overElements("adding to narrow elements", count, stream,
                 AddNarrowed<Format>{from, static_cast<typename Format::Bits*>(to)});
  });
}

}  // namespace moeccl::cuda

// Tensors as buffers of moeccl's.
#pragma once

#include <ATen/ATen.h>
#include <moeccl/moeccl.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "work.h"

namespace moeccl::torch {

using Needs = MoecclWork::Needs;

// What is only moved goes by bytes, whatever its type.
inline constexpr moecclDataType_t kBytes = moecclUint8;

// Elements of a reduction, as moeccl has them.
struct Numbers {
  moecclDataType_t type;
  moecclRedOp_t op;
  size_t perElement;  // a complex number is two
};
// Throws where there is no such reduction.
Numbers numbersOf(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Contiguous memory with the tensor's data; it is kept.
void* input(const at::Tensor& tensor, Needs* needs);
// Contiguous memory for the tensor's data, which comes to it when the call is complete. `filled`:
// with its data now.
void* output(const at::Tensor& tensor, bool filled, Needs* needs);

// Parts of one buffer that are tensors of their own: they lie behind the lowest of them.
struct Parts {
  char* base = nullptr;
  std::vector<size_t> counts, displs;  // in units
};
Parts partsOf(const std::vector<void*>& addresses, const std::vector<size_t>& bytes, size_t unit);
Parts inputs(const std::vector<at::Tensor>& tensors, size_t unit, Needs* needs);
Parts outputs(const std::vector<at::Tensor>& tensors, size_t unit, Needs* needs);

// The one tensor, or list of tensors, that a call of one rank takes.
template <typename Given>
Given& only(std::vector<Given>& given) {
  TORCH_CHECK(given.size() == 1, "moeccl takes one ",
              std::is_same_v<Given, at::Tensor> ? "tensor" : "list of tensors", " per rank, not ",
              given.size());
  return given[0];
}

// What makes a call, or several that run at once.
using Launch = std::function<moecclResult_t(moecclComm_t comm, moecclStream_t stream)>;

// A call for each part.
template <typename Part, typename Call>
Launch eachOf(std::vector<Part> parts, Call call) {
  return [parts = std::move(parts), call](moecclComm_t comm, moecclStream_t stream) {
    moecclResult_t result = moecclSuccess;
    if (parts.size() != 1) moecclGroupStart();
    for (const Part& part : parts)
      if (const moecclResult_t one = call(part, comm, stream); result == moecclSuccess)
        result = one;
    const moecclResult_t last = parts.size() != 1 ? moecclGroupEnd() : moecclSuccess;
    return result == moecclSuccess ? last : result;
  };
}

// In place, whatever the strides.
Launch allReduceOf(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, Needs* needs);

}  // namespace moeccl::torch

// Tensors as buffers of moeccl's.
#pragma once

#include <ATen/ATen.h>
#include <moeccl/moeccl.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
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

// Calls of one operation on several tensors run at once.
class InGroup {
 public:
  explicit InGroup(size_t calls) : open_(calls != 1) {
    if (open_) moecclGroupStart();
  }
  InGroup(const InGroup&) = delete;
  InGroup& operator=(const InGroup&) = delete;
  void add(moecclResult_t result) {
    if (result_ == moecclSuccess) result_ = result;
  }
  moecclResult_t end() {
    const moecclResult_t last = open_ ? moecclGroupEnd() : moecclSuccess;
    return result_ == moecclSuccess ? last : result_;
  }

 private:
  const bool open_;
  moecclResult_t result_ = moecclSuccess;
};

}  // namespace moeccl::torch

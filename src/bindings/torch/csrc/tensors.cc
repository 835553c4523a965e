// Makes tensors contiguous where calls need that, and knows their datatypes.
#include "tensors.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>

namespace moeccl::torch {
namespace {

moecclDataType_t typeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kChar:
      return moecclInt8;
    case at::kByte:
    case at::kBool:
      return moecclUint8;
    case at::kShort:
      return moecclInt16;
    case at::kInt:
      return moecclInt32;
    case at::kLong:
      return moecclInt64;
    case at::kUInt16:
      return moecclUint16;
    case at::kUInt32:
      return moecclUint32;
    case at::kUInt64:
      return moecclUint64;
    case at::kHalf:
      return moecclFloat16;
    case at::kBFloat16:
      return moecclBfloat16;
    case at::kFloat:
    case at::kComplexFloat:
      return moecclFloat32;
    case at::kDouble:
    case at::kComplexDouble:
      return moecclFloat64;
    case at::kFloat8_e4m3fn:
      return moecclFloat8e4m3;
    case at::kFloat8_e5m2:
      return moecclFloat8e5m2;
    default:
      TORCH_CHECK(false, "moeccl has no reductions of ", tensor.scalar_type());
  }
}

moecclRedOp_t opOf(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return moecclSum;
    case c10d::ReduceOp::AVG:
      return moecclAvg;
    case c10d::ReduceOp::PRODUCT:
      return moecclProd;
    case c10d::ReduceOp::MIN:
      return moecclMin;
    case c10d::ReduceOp::MAX:
      return moecclMax;
    case c10d::ReduceOp::BAND:
      return moecclBitAnd;
    case c10d::ReduceOp::BOR:
      return moecclBitOr;
    case c10d::ReduceOp::BXOR:
      return moecclBitXor;
    default:
      TORCH_CHECK(false,
                  "moeccl has no such reduction; multiply before a sum instead of PREMUL_SUM");
  }
}

// A DTensor, or another wrapper around a tensor, has a shape and no memory of its own.
void requireMemory(const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.is_sparse(), "moeccl takes dense tensors");
  TORCH_CHECK_TYPE(
      tensor.numel() == 0 || (tensor.has_storage() && tensor.storage().data() != nullptr),
      "moeccl takes tensors with memory of their own, and this one, ", tensor.sizes(),
      ", is a DTensor, another wrapper subclass, or on the device meta; pass its local tensor "
      "(DTensor.to_local())");
}

// Addresses and bytes of contiguous tensors.
template <typename AddressOf>
Parts lay(const std::vector<at::Tensor>& tensors, size_t unit, const AddressOf& addressOf) {
  std::vector<void*> addresses;
  std::vector<size_t> bytes;
  for (const at::Tensor& tensor : tensors) {
    addresses.push_back(addressOf(tensor));
    bytes.push_back(tensor.nbytes());
  }
  return partsOf(addresses, bytes, unit);
}

// Whether two indices of the tensor are one place in memory.
bool overlapsItself(const at::Tensor& tensor) {
  const at::MemOverlap known = at::has_internal_overlap(tensor);
  if (known != at::MemOverlap::TooHard) return known == at::MemOverlap::Yes;
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride and size, the smallest stride first
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1) steps.emplace_back(tensor.stride(i), tensor.size(i));
  std::ranges::sort(steps);
  int64_t last = 0;
  bool apart = true;  // each step leads beyond all that smaller ones reach
  for (const auto& [stride, size] : steps) {
    apart &= stride > last;
    last += stride * (size - 1);
  }
  if (apart) return false;
  const at::Tensor places =
      at::arange(last + 1).as_strided(tensor.sizes(), tensor.strides()).flatten();
  return std::get<0>(at::_unique(places)).numel() < places.numel();
}

void requireApart(const at::Tensor& tensor) {
  TORCH_CHECK(!overlapsItself(tensor), "an output of sizes ", tensor.sizes(), " and strides ",
              tensor.strides(),
              " has elements that share memory; clone it, and receive into the clone");
}

void requireApart(const std::vector<at::Tensor>& tensors) {
  std::vector<const at::Tensor*> byAddress;
  for (const at::Tensor& tensor : tensors)
    if (tensor.is_contiguous() && tensor.nbytes() > 0) byAddress.push_back(&tensor);
  std::ranges::sort(byAddress, {}, [](const at::Tensor* each) { return each->data_ptr(); });
  for (size_t i = 1; i < byAddress.size(); ++i)
    TORCH_CHECK(
        at::get_overlap_status(*byAddress[i - 1], *byAddress[i]) != at::MemOverlapStatus::Partial,
        "outputs of sizes ", byAddress[i - 1]->sizes(), " and ", byAddress[i]->sizes(),
        " share a part of their memory; pass outputs that lie apart");
}

// Contiguous, and without a conjugation or a negation that is still to be made.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

}  // namespace

Numbers numbersOf(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Numbers numbers{typeOf(tensor), opOf(op), 1};
  if (tensor.is_complex()) {
    TORCH_CHECK(numbers.op == moecclSum || numbers.op == moecclAvg,
                "complex numbers can only be summed and averaged");
    numbers.perElement = 2;
  }
  if (tensor.scalar_type() == at::kBool) {
    TORCH_CHECK(numbers.op != moecclAvg, "booleans have no average");
    const bool all =
        numbers.op == moecclProd || numbers.op == moecclMin || numbers.op == moecclBitAnd;
    if (numbers.op != moecclBitXor) numbers.op = all ? moecclBitAnd : moecclBitOr;
  }
  return numbers;
}

void* input(const at::Tensor& tensor, Needs* needs) {
  requireMemory(tensor);
  needs->tensors.push_back(plain(tensor));
  return needs->tensors.back().data_ptr();
}

void* output(const at::Tensor& tensor, bool filled, Needs* needs) {
  requireMemory(tensor);
  requireApart(tensor);
  needs->outputs.push_back(tensor);
  const bool isPlain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (isPlain) return tensor.data_ptr();
  at::Tensor flat = filled ? plain(tensor) : at::empty(tensor.sizes(), tensor.options());
  needs->tensors.push_back(flat);
  needs->after.emplace_back([tensor, flat] {
    const at::NoGradGuard guard;
    tensor.copy_(flat);
  });
  return flat.data_ptr();
}

Parts partsOf(const std::vector<void*>& addresses, const std::vector<size_t>& bytes, size_t unit) {
  Parts parts;
  for (size_t i = 0; i < addresses.size(); ++i) {
    auto* const at = static_cast<char*>(addresses[i]);
    if (bytes[i] > 0 && (parts.base == nullptr || at < parts.base)) parts.base = at;
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    const size_t distance =
        bytes[i] == 0 ? 0 : static_cast<size_t>(static_cast<char*>(addresses[i]) - parts.base);
    TORCH_CHECK(distance % unit == 0,
                "tensors of one call must lie at multiples of their elements");
    parts.counts.push_back(bytes[i] / unit);
    parts.displs.push_back(distance / unit);
  }
  return parts;
}

Parts inputs(const std::vector<at::Tensor>& tensors, size_t unit, Needs* needs) {
  return lay(tensors, unit, [&](const at::Tensor& tensor) { return input(tensor, needs); });
}

Parts outputs(const std::vector<at::Tensor>& tensors, size_t unit, Needs* needs) {
  requireApart(tensors);
  return lay(tensors, unit, [&](const at::Tensor& tensor) { return output(tensor, false, needs); });
}

Launch allReduceOf(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, Needs* needs) {
  struct Part {
    void* data;
    size_t count;
    Numbers numbers;
  };
  std::vector<Part> parts;
  for (const at::Tensor& tensor : tensors) {
    const Numbers numbers = numbersOf(tensor, op);
    const size_t count = static_cast<size_t>(tensor.numel()) * numbers.perElement;
    parts.push_back({output(tensor, true, needs), count, numbers});
  }
  return eachOf(std::move(parts), [](const Part& part, moecclComm_t comm, moecclStream_t stream) {
    return moecclAllReduce(part.data, part.data, part.count, part.numbers.type, part.numbers.op,
                           comm, stream);
  });
}

}  // namespace moeccl::torch

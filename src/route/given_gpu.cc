// Rows of given choices on a GPU.
#include <cstring>

#include "src/base/text.h"
#include "src/route/gpu_rows.h"

namespace moeccl {
namespace {

class GpuGivenRouter final : public GpuRouter<GivenRouter> {
 public:
  GpuGivenRouter(RowCompute& compute, const RowShape& shape)
      : GpuRouter(compute, shape), compute_(compute) {}

  // All that the host has goes up in one piece.
  void set(const RowTables& rows, moecclStream_t stream) override {
    const auto choices = static_cast<std::size_t>(rows.tokens * rowShape_.choices);
    packed_.clear();
    const auto pack = [&](const auto* from, std::size_t count) {
      packed_.resize((packed_.size() + 7) / 8 * 8);
      const std::size_t at = packed_.size();
      if (from == nullptr) return at;
      packed_.resize(at + count * sizeof *from);
      std::memcpy(packed_.data() + at, from, count * sizeof *from);
      return at;
    };
    if (rows.listed != nullptr) {
      hostPositions_.assign(choices, -1);
      // Behind the last one that is listed are zeros.
      for (std::size_t i = 0; i < choices && rows.listed[i] >= 0; ++i)
        hostPositions_[static_cast<std::size_t>(rows.listed[i])] = static_cast<std::int64_t>(i);
    }
    const std::size_t experts = pack(rows.experts, choices);
    const std::size_t weights = pack(static_cast<const float*>(rows.weights), choices);
    const std::size_t slots = pack(rows.slots, choices);
    const std::size_t used =
        pack(rows.used, static_cast<std::size_t>(rows.groups * rowShape_.experts));
    const std::size_t listed = pack(rows.listed, choices);
    const std::size_t positions =
        pack(rows.listed == nullptr ? nullptr : hostPositions_.data(), choices);
    if (packed_.size() > room_) compute_.grow(memory_, room_, packed_.size());
    if (!packed_.empty()) compute_.fromHost(memory_.get(), packed_.data(), packed_.size(), stream);
    tables_ = {rows.tokens,
               rows.groups,
               at<std::int32_t>(experts),
               at<float>(weights),
               rows.slots == nullptr ? nullptr : at<std::int64_t>(slots),
               at<std::int64_t>(used),
               at<std::int64_t>(listed)};
    positions_ = at<std::int64_t>(positions);
  }

 private:
  template <typename T>
  const T* at(std::size_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(memory_.get()) + offset);
  }

  RowCompute& compute_;
  std::vector<std::byte> packed_;
  std::vector<std::int64_t> hostPositions_;
  Memory memory_;
  std::size_t room_ = 0;
};

class GpuGivenCompute final : public GpuCompute<GivenCompute> {
 public:
  using GpuCompute<GivenCompute>::GpuCompute;

  std::unique_ptr<GivenRouter> router(const RowShape& shape) override {
    shape_ = shape;
    return std::make_unique<GpuGivenRouter>(*this, shape);
  }
  int exchangeDevice(int device) override { return cuda::exchangeDevice(device); }
  void widen(const void* from, std::int64_t count, void* to, moecclStream_t stream) override {
    cuda::widen(datatype(), from, count, static_cast<float*>(to), stream);
  }
  void gather(std::span<const Gathering> parts, moecclStream_t stream) override {
    gatherOnGpu<GpuGivenRouter>(parts, shape_.choices, bytesOf(shape_.embedding), gathered_,
                                stream);
  }

 private:
  RowShape shape_{};  // of its routers, which are alike
  std::vector<cuda::GatheredRows> gathered_;
};

}  // namespace

std::unique_ptr<GivenCompute> givenComputeOnGpu(moecclDataType_t datatype) {
  if (datatype == moecclFloat64)
    throw Error(moecclInvalidArgument,
                stringf("config.datatype is %d; on GPUs it must be moecclFloat32 (%d), "
                        "moecclFloat16 (%d) or moecclBfloat16 (%d)",
                        datatype, moecclFloat32, moecclFloat16, moecclBfloat16));
  return std::make_unique<GpuGivenCompute>(datatype, datatype == moecclFloat32 ? 4 : 2);
}

}  // namespace moeccl

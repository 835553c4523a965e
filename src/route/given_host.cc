// Rows of given choices on host memory.
#include "src/route/host_rows.h"

namespace moeccl {
namespace {

template <typename Real>
class HostGivenRouter final : public HostRouter<Real, Wide<Real>, GivenRouter> {
 public:
  using HostRouter<Real, Wide<Real>, GivenRouter>::HostRouter;

  void set(const RowTables& tables, moecclStream_t) override { this->tables_ = tables; }
};

template <typename Real>
class HostGivenCompute final : public HostCompute<Real, GivenCompute> {
 public:
  using HostCompute<Real, GivenCompute>::HostCompute;

  std::unique_ptr<GivenRouter> router(const RowShape& shape) override {
    return std::make_unique<HostGivenRouter<Real>>(shape);
  }
  void widen(const void* from, std::int64_t count, void* to, moecclStream_t) override {
    std::copy_n(static_cast<const Wide<Real>*>(from), count, static_cast<Wide<Real>*>(to));
  }
};

template <typename Real>
std::unique_ptr<GivenCompute> made(moecclDataType_t datatype) {
  return std::make_unique<HostGivenCompute<Real>>(datatype, sizeof(Real));
}

}  // namespace

std::unique_ptr<GivenCompute> givenComputeOnHost(moecclDataType_t datatype) {
  switch (datatype) {
    case moecclFloat64:
      return made<double>(datatype);
    case moecclFloat16:
      return made<NarrowFloat16>(datatype);
    case moecclBfloat16:
      return made<NarrowBfloat16>(datatype);
    default:
      return made<float>(datatype);
  }
}

}  // namespace moeccl

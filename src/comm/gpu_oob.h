// The all-gather of ranks that have nothing but NCCL: through the memory of their GPUs.
#pragma once

#include "src/bootstrap/oob.h"
#include "src/exec/nccl_lanes.h"

namespace moeccl {

class GpuOob : public Oob {
 public:
  // `lanes` must outlive this.
  explicit GpuOob(NcclLanes& lanes);

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  void allgather(const void* send, void* recv, std::size_t bytes) override;

 private:
  NcclLanes& lanes_;
  const int rank_, ranks_;
};

}  // namespace moeccl

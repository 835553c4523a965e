// Launches copies of blocks on a GPU, as many in one kernel as its parameters hold.
#include "kernels/copy_tiles.h"
#include "kernels/launch_cuda.h"

namespace moeccl::cuda {
namespace {

static_assert(kTileThreads == kThreads);

template <typename Batch>
__global__ void __launch_bounds__(kThreads)
    copyKernel(const __grid_constant__ Batch batch, std::uint64_t tiles) {
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    copyPart(batch, tile, threadIdx.x);
}

template <typename Batch>
void launch(const Batch& batch, void* stream) {
  static_assert(sizeof batch + sizeof(std::uint64_t) <= 4096);
  if (batch.count == 0) return;
  launchKernel("copying blocks", copyKernel<Batch>, gridOf(batch.tiles()), kThreads, stream, batch,
               batch.tiles());
}

template <typename Batch>
void copyInBatches(std::span<const BlockCopy> copies, void* stream) {
  Batch batch;
  for (const BlockCopy& copy : copies) {
    batch.add(copy);
    if (batch.count < Batch::kMost) continue;
    launch(batch, stream);
    batch.count = 0;
  }
  launch(batch, stream);
}

}  // namespace

void copyBlocks(std::span<const BlockCopy> copies, void* stream) {
  constexpr std::size_t kFew = 8;  // which should not pay for many
  if (copies.size() <= kFew) return copyInBatches<CopyBatch<kFew>>(copies, stream);
  if (copiesPerLaunch(copies) == kMostCopies)
    return copyInBatches<CopyBatch<kMostCopies>>(copies, stream);
  copyInBatches<SingleBatch<kMostSingle>>(copies, stream);
}

}  // namespace moeccl::cuda

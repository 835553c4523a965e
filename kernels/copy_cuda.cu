#include "kernels/copy_tiles.h"
#include "kernels/launch_cuda.h"

namespace moeccl::cuda {
namespace {

static_assert(kTileThreads == kThreads);

template <int kCopies>
__global__ void __launch_bounds__(kThreads)
    copyKernel(const __grid_constant__ CopyBatch<kCopies> batch, std::uint64_t tiles) {
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
    copyPart(batch, tile, threadIdx.x);
}

// Parameters of up to 4 KiB are taken by all drivers; few copies should not pay for many.
constexpr int kFew = 8, kMany = 40;
static_assert(sizeof(CopyBatch<kMany>) + sizeof(std::uint64_t) <= 4096);

template <int kCopies>
void launch(const CopyBatch<kCopies>& batch, void* stream) {
  launchKernel("copying blocks", copyKernel<kCopies>, gridOf(batch.tiles()), kThreads, stream,
               batch, batch.tiles());
}

void launch(const CopyBatch<kMany>& batch, void* stream, std::uint32_t) {
  if (batch.count > kFew) return launch(batch, stream);
  CopyBatch<kFew> few;
  for (std::uint32_t i = 0; i < batch.count; ++i) few.add(batch.copies[i]);
  if (few.count > 0) launch(few, stream);
}

}  // namespace

void copyBlocks(std::span<const BlockCopy> copies, void* stream) {
  CopyBatch<kMany> batch;
  for (const BlockCopy& copy : copies) {
    const TiledCopy next = tiled(copy);
    if (next.tiles() > 0) batch.add(next);
    if (batch.count < kMany) continue;
    launch(batch, stream);
    batch.count = 0;
  }
  launch(batch, stream, 0);
}

}  // namespace moeccl::cuda

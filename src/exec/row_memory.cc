// Takes the smallest free piece that is large enough, or allocates another.
#include "src/exec/row_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace moeccl {
namespace {

// The least bytes of a piece for lists. Larger ones are powers of two: few sizes, so that pieces
// fit again.
constexpr std::size_t kLeast = std::size_t{16} << 10;

}  // namespace

std::shared_ptr<RowMemory::Piece> RowMemory::find(std::size_t bytes, bool onHost) {
  std::shared_ptr<Piece> best;
  for (const std::shared_ptr<Piece>& piece : pieces_)
    if (!piece->isTaken && piece->bytes >= bytes && (piece->host != nullptr) == onHost &&
        (best == nullptr || piece->bytes < best->bytes) &&
        (!piece->isRecorded || gpu_->complete(piece->copied)))
      best = piece;
  if (best != nullptr) return best;
  auto made = std::make_shared<Piece>();
  made->bytes = onHost ? std::bit_ceil(std::max(bytes, kLeast)) : bytes;
  pieces_.reserve(pieces_.size() + 1);
  try {
    made->device = gpu_->allocate(made->bytes);
    if (onHost) made->host = gpu_->allocatePinned(made->bytes);
    made->copied = gpu_->newEvent();
  } catch (...) {
    if (made->host != nullptr) gpu_->freePinned(made->host);
    if (made->device != nullptr) gpu_->free(made->device);
    throw;
  }
  pieces_.push_back(made);
  return made;
}

std::shared_ptr<RowMemory::Piece> RowMemory::take(std::size_t bytes, bool onHost) {
  const std::shared_ptr<Piece> piece = find(bytes, onHost);
  piece->isTaken = true;
  return {piece.get(), [piece](Piece* given) { given->isTaken = false; }};
}

void RowMemory::copy(Piece& piece, std::size_t bytes, Gpu::Stream stream) {
  gpu_->toDevice(piece.device, piece.host, bytes, stream);
  gpu_->record(piece.copied, stream);
  piece.isRecorded = true;
}

void RowMemory::close() noexcept {
  for (const std::shared_ptr<Piece>& piece : std::exchange(pieces_, {})) {
    gpu_->deleteEvent(piece->copied);
    if (piece->host != nullptr) gpu_->freePinned(piece->host);
    gpu_->free(piece->device);
  }
}

}  // namespace moeccl

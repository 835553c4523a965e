#include "src/moe/places.h"

#include <new>
#include <string>

#include "src/error.h"

namespace moeccl {

Memory memoryForRows(Compute& compute, std::int64_t rows) {
  const std::int64_t embedding = compute.shape().embedding;
  try {
    return compute.elements(elementCount({rows, embedding}));
  } catch (const std::bad_alloc&) {
    throw Error(
        moecclSystemError,
        "there is no memory for " + std::to_string(rows) + " rows of " + std::to_string(embedding) +
            " elements, which experts of this rank are given or their tokens need; the layer "
            "is dropless, so a hot expert is given all that choose it");
  }
}

void Places::reserve(std::int64_t rows, std::int64_t results) {
  const std::int64_t embedding = compute_.shape().embedding;
  if (rows * embedding > size_) {
    // What is too small goes first, so that the old and the new are never there together.
    size_ = 0;
    for (Memory* memory : {&rows_, &spare_, &inputs_}) memory->reset();
    rows_ = memoryForRows(compute_, rows);
    spare_ = memoryForRows(compute_, rows);
    if (keeps_) inputs_ = memoryForRows(compute_, rows);
    size_ = rows * embedding;
  }
  if (!keeps_) return;
  resultsSize_ = results * embedding;
  if (resultsSize_ <= resultsRoom_) return;
  resultsRoom_ = 0;
  results_.reset();
  results_ = memoryForRows(compute_, results);
  resultsRoom_ = resultsSize_;
}

}  // namespace moeccl

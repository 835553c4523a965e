// The blocks of an all-to-all-v by way of relays, where all ranks know how large one can be: each
// message begins with the sizes of its blocks, so that relays need not be told them before.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "algorithms/extents.h"
#include "src/exec/content.h"

namespace moeccl {

class BoundedBlocks final : public Content {
 public:
  // `inputs` and `outputs`: by rank.
  BoundedBlocks(std::size_t most, std::vector<Extent> inputs, std::vector<Extent> outputs);

  void begin(const Plan& plan, const std::byte* input, std::byte* output) override;
  std::size_t mostBytes(const Op& op) const override;
  std::size_t write(const Op& op, std::byte* to) override;
  bool read(const Op& op, const std::byte* from, std::size_t bytes, Misfit* misfit) override;
  bool work(const Op& op, Misfit* misfit) override;

 private:
  struct Block {
    const std::byte* at;
    std::size_t bytes;
  };
  Block blockOf(Buffer buffer, std::int32_t index) const;
  // Takes what is for a block, which stays where it is; returns whether it fits.
  bool put(Buffer buffer, std::int32_t index, Block block, Misfit* misfit);

  const std::size_t most_;
  const std::vector<Extent> inputs_, outputs_;
  const Plan* plan_ = nullptr;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::vector<Block> scratch_;
};

}  // namespace moeccl

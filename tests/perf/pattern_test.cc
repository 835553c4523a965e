// A benchmark's check is worth nothing unless it notices each of these.
#include "perf/common/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace moeccl::perf {
namespace {

constexpr BlockData kPayload = {3, 5};
constexpr std::uint64_t kIteration = 7;

std::vector<std::byte> filled(std::size_t bytes, BlockData payload, std::uint64_t iteration) {
  std::vector<std::byte> block(bytes);
  fillBlock(block, {1}, payload, iteration);
  return block;
}

TEST(Pattern, AcceptsWhatWasFilled) {
  for (const std::size_t bytes : {0, 4, 8, 60, 4096})
    EXPECT_EQ(countWrong(filled(bytes, kPayload, kIteration), {4}, kPayload, kIteration), 0)
        << bytes;
}

TEST(Pattern, CountsEveryElementThatOneBitIsWrongIn) {
  for (std::size_t at = 0; at < 64; ++at) {
    std::vector<std::byte> block = filled(64, kPayload, kIteration);
    block[at] ^= std::byte{1};
    EXPECT_EQ(countWrong(block, {8}, kPayload, kIteration), 1) << at;
  }
  std::vector<std::byte> block = filled(64, kPayload, kIteration);
  block[0] ^= std::byte{1};
  block[7] ^= std::byte{1};
  block[8] ^= std::byte{1};
  EXPECT_EQ(countWrong(block, {8}, kPayload, kIteration), 2);
}

TEST(Pattern, RejectsAnotherBlock) {
  constexpr std::size_t kElements = 1024;
  for (const BlockData other : {BlockData{5, 3}, BlockData{3, 6}, BlockData{4, 5}, BlockData{0, 0}})
    EXPECT_EQ(countWrong(filled(8 * kElements, other, kIteration), {8}, kPayload, kIteration),
              kElements);
}

TEST(Pattern, RejectsAnotherIterationsBlock) {
  EXPECT_EQ(countWrong(filled(8 * 16, kPayload, kIteration - 1), {8}, kPayload, kIteration), 16);
}

// Added up, the terms are what is expected; without one of them the sum is not.
TEST(Pattern, TermsAddUp) {
  constexpr int kTerms = 3;
  constexpr std::size_t kElements = 100;
  const Elements elements{sizeof(float), true};
  std::vector<float> sum(kElements, 0), less(kElements, 0);
  for (int term = 0; term < kTerms; ++term) {
    std::vector<float> mine(kElements);
    fillBlock(std::as_writable_bytes(std::span(mine)), elements, {3, 5, term, kTerms}, kIteration);
    for (std::size_t i = 0; i < kElements; ++i) {
      sum[i] += mine[i];
      if (term > 0) less[i] += mine[i];
    }
  }
  EXPECT_EQ(countWrong(std::as_bytes(std::span(sum)), elements, kPayload, kIteration), 0);
  EXPECT_EQ(countWrong(std::as_bytes(std::span(less)), elements, kPayload, kIteration),
            (kElements + kTerms - 1) / kTerms);
}

TEST(Pattern, RejectsElementsThatMoved) {
  std::vector<std::byte> block = filled(8 * 16, kPayload, kIteration);
  std::rotate(block.begin(), block.begin() + 8, block.end());
  EXPECT_EQ(countWrong(block, {8}, kPayload, kIteration), 16);
}

TEST(Pattern, RejectsPoisonInEveryByte) {
  std::vector<std::byte> block(256);
  poisonBlock(block, {1}, kPayload, kIteration);
  EXPECT_EQ(countWrong(block, {1}, kPayload, kIteration), 256);
}

}  // namespace
}  // namespace moeccl::perf

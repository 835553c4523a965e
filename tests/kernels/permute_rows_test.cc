// What the threads of the CUDA kernels do to move tokens, done here one after another, against the CPU's.
#include "kernels/permute_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/capacity.h"
#include "kernels/reduce_ops.h"
#include "tests/kernels/threads_as_lanes.h"

namespace moeccl {
namespace {

constexpr float kPoison = -12345;

// Whole numbers, so that all sums are exact in every format.
std::vector<float> values(std::mt19937& random, std::int64_t count) {
  std::vector<float> made(count);
  for (float& value : made) value = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return made;
}

// Rows in the format that the kernels see them in, `shift` elements behind an aligned address.
template <typename Format>
class Rows {
 public:
  using Bits = typename Format::Bits;
  Rows(const std::vector<float>& values, std::size_t shift)
      : bits_(values.size() + 16), shift_(shift) {
    for (std::size_t i = 0; i < values.size(); ++i) bits_[shift + i] = Format::encode(values[i]);
    size_ = values.size();
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(bits_.data() + shift_); }
  std::vector<float> floats() const {
    std::vector<float> values;
    for (std::size_t i = 0; i < size_; ++i) values.push_back(Format::decode(bits_[shift_ + i]));
    return values;
  }

 private:
  std::vector<Bits> bits_;
  std::size_t shift_, size_;
};

struct Batch {
  std::int64_t tokens, embedding, groups, groupSlots, expertStride;
  std::int32_t experts, choices;
  std::vector<std::int32_t> chosen;
  std::vector<std::int64_t> slots, used;
  std::vector<float> weights;

  explicit Batch(std::mt19937& random) {
    const std::int64_t widths[] = {1, 3, 4, 8, 24, 64, 129, 1024, 1032, 5000};
    embedding = widths[random() % std::size(widths)];
    tokens = random() % 12;
    groups = random() % 3 + 1;
    groupSlots = random() % 4 + 1;
    experts = random() % 5 + 1;
    choices = random() % 3 + 1;
    expertStride = groups * groupSlots + random() % 2;
    chosen.resize(tokens * choices);
    slots.resize(chosen.size());
    used.resize(groups * experts);
    for (std::int32_t& expert : chosen)
      expert = static_cast<std::int32_t>(random() % (experts + 1)) - 1;
    assignSlots({experts, choices, (tokens + groups - 1) / groups, groupSlots}, chosen.data(),
                tokens, groups, used.data(), slots.data());
    weights = values(random, tokens * choices);
  }
  Choices<float> all() const {
    return {chosen.data(), slots.data(), weights.data(), tokens, choices};
  }
  std::int64_t rows() const { return experts * expertStride; }
};

// For each thread of each row. Access is as wide as the shape, which the launchers see to.
template <typename Function>
void eachThread(const RowShape& shape, std::int64_t rows, Function function) {
  for (std::int64_t row = rows; row-- > 0;)
    for (std::int64_t thread = 0; thread < shape.rowThreads; ++thread) function(row, thread);
}

template <typename Format>
void compareForward(const Batch& batch, std::size_t shift, std::mt19937& random) {
  const std::int64_t width = batch.embedding;
  const std::vector<float> input = values(random, batch.tokens * width);
  std::vector<float> rows(batch.rows() * width, kPoison), sums(input.size(), kPoison);
  std::vector<float> expectedRows(rows), expectedSums(sums);
  Rows<Format> in(input, shift), out(rows, shift), summed(sums, shift);
  const std::uint64_t rowBytes = width * sizeof(typename Format::Bits);
  const RowShape shape = rowShape(addressOf(in.data()) | addressOf(out.data()), rowBytes);
  expectedRows = out.floats();

  scatterTokens(batch.all(), input.data(), width, batch.expertStride, expectedRows.data());
  clearUnused(batch.used.data(), batch.groups, batch.experts, batch.groupSlots, width,
              batch.expertStride, expectedRows.data());
  withWidth(shape.width, [&]<typename Access>(Access) {
    eachThread(shape, batch.tokens, [&](std::int64_t token, std::int64_t thread) {
      scatterToken<Access>(shape, batch.all(), in.data(), batch.expertStride, out.data(), token,
                           thread);
    });
    for (std::int64_t i = 0; i < batch.groups * batch.experts; ++i)
      clearPlaces<Access>(
          OneLane{}, shape, batch.used[i], batch.groupSlots,
          i % batch.experts * batch.expertStride + i / batch.experts * batch.groupSlots,
          out.data());
  });
  EXPECT_EQ(out.floats(), expectedRows) << "scatter";

  const std::vector<float> places = values(random, rows.size());
  Rows<Format> from(places, shift);
  const auto gather = [&]<bool kWeighted>(std::bool_constant<kWeighted>) {
    withWidth(shape.width, [&]<typename Access>(Access) {
      if constexpr (sizeof(Access) >= sizeof(typename Format::Bits))
        eachThread(shape, batch.tokens, [&](std::int64_t token, std::int64_t thread) {
          gatherToken<Format, Access, kWeighted>(shape, batch.all(), from.data(),
                                                 batch.expertStride, summed.data(), token, thread);
        });
    });
  };
  combineTokens(batch.all(), places.data(), width, batch.expertStride, expectedSums.data());
  gather(std::true_type{});
  EXPECT_EQ(summed.floats(), expectedSums) << "combine";
  scatterTokensBackward(batch.all(), places.data(), width, batch.expertStride, expectedSums.data());
  gather(std::false_type{});
  EXPECT_EQ(summed.floats(), expectedSums) << "scatter backward";
}

template <typename Format, int kLanes>
void compareBackward(const Batch& batch, std::size_t shift, std::mt19937& random) {
  const std::int64_t width = batch.embedding;
  const std::vector<float> rows = values(random, batch.rows() * width);
  const std::vector<float> gradient = values(random, batch.tokens * width);
  Rows<Format> from(rows, shift), out(gradient, shift);
  Rows<Format> result(std::vector<float>(rows.size(), kPoison), shift);
  std::vector<float> expected = result.floats(), weights(batch.chosen.size(), kPoison),
                     expectedWeights(weights);
  const RowShape shape = rowShape(addressOf(from.data()) | addressOf(out.data()),
                                  width * sizeof(typename Format::Bits));
  combineTokensBackward(batch.all(), rows.data(), gradient.data(), width, batch.expertStride,
                        expected.data(), expectedWeights.data());
  withWidth(shape.width, [&]<typename Access>(Access) {
    if constexpr (sizeof(Access) >= sizeof(typename Format::Bits))
      onLanes<kLanes>([&](const auto& lanes) {
        for (std::size_t at = 0; at < weights.size(); ++at)
          choiceBackward<Format, Access>(lanes, shape, batch.all(), from.data(), out.data(),
                                         batch.expertStride, result.data(), weights.data(),
                                         static_cast<std::int64_t>(at));
      });
  });
  EXPECT_EQ(result.floats(), expected) << "combine backward, rows";
  EXPECT_EQ(weights, expectedWeights) << "combine backward, weights";
}

// The lists of one expert after another.
void compareListed(const Batch& batch, std::mt19937& random) {
  using Format = Unchanged<float>;
  const std::int64_t width = batch.embedding;
  std::vector<std::int64_t> begins(batch.experts + 1), listed(batch.chosen.size());
  listByExpert(batch.all(), batch.experts, begins.data(), listed.data());
  const std::vector<float> input = values(random, batch.tokens * width);
  std::vector<float> rows(listed.size() * width, kPoison), sums(input), expectedRows(rows),
      expectedSums(sums);
  const auto bytes = [](std::vector<float>& floats) {
    return reinterpret_cast<std::byte*>(floats.data());
  };
  std::vector<float> source(input);
  const std::span<const std::int64_t> all(listed.data(), begins[batch.experts]);
  const RowShape shape = rowShape(16, width * sizeof(float));
  withWidth(shape.width, [&]<typename Access>(Access) {
    if constexpr (sizeof(Access) >= sizeof(float)) {
      gatherListed(batch.all(), all, input.data(), width, expectedRows.data());
      eachThread(shape, std::ssize(all), [&](std::int64_t row, std::int64_t thread) {
        copyRow<Access>(shape, bytes(source), all[row] / batch.choices, bytes(rows), row, thread);
      });
      EXPECT_EQ(rows, expectedRows) << "gather listed";
      addListed(batch.all(), all, rows.data(), width, expectedSums.data());
      eachThread(shape, std::ssize(all), [&](std::int64_t row, std::int64_t thread) {
        addRow<Format, Access>(shape, batch.weights[all[row]], bytes(rows), row, bytes(sums),
                               all[row] / batch.choices, thread);
      });
      EXPECT_EQ(sums, expectedSums) << "add listed";
    }
  });
}

TEST(PermuteRows, ThreadsTogetherMoveTokensAsTheCpuDoes) {
  std::mt19937 random(1);
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    const Batch batch(random);
    const std::size_t shift = round % 3 == 0 ? random() % 4 : 0;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << batch.tokens << " x "
                                    << batch.embedding << ", shifted by " << shift);
    compareForward<Unchanged<float>>(batch, shift, random);
    compareForward<Bfloat16>(batch, shift, random);
    compareForward<Float16>(batch, shift, random);
    if (batch.embedding < 100) compareBackward<Unchanged<float>, 4>(batch, shift, random);
    compareBackward<Unchanged<float>, 1>(batch, shift, random);
    compareListed(batch, random);
  }
}

TEST(PermuteRows, ThreadsOfARow) {
  EXPECT_EQ(rowShape(16, 16384).rowThreads, 256);
  EXPECT_EQ(rowShape(16, 28672).rowThreads, 256);
  EXPECT_EQ(rowShape(16, 64).rowThreads, 1);
  EXPECT_EQ(rowShape(16, 80).rowThreads, 2);
  EXPECT_EQ(rowShape(4, 80).width, 4);
  EXPECT_EQ(rowShape(16, 6).width, 2);
}

}  // namespace
}  // namespace moeccl

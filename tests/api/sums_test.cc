// Sums of numbers that have to be rounded, to the last bit: which order they are taken in must not
// depend on the algorithm where the header says so, and never on the rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

constexpr size_t kCount = 57;

using Numbers = std::vector<float>;
using Bytes = std::vector<unsigned char>;

// Numbers of very different sizes, so that every order of adding gives another sum; each is exact
// in `type`.
Numbers numbersOf(int rank, size_t count, moecclDataType_t type, unsigned salt);

float rounded(float value, moecclDataType_t type) {
  switch (type) {
    case moecclFloat16:
      return Float16::decode(Float16::encode(value));
    case moecclBfloat16:
      return Bfloat16::decode(Bfloat16::encode(value));
    default:
      return value;
  }
}

Bytes encoded(const Numbers& numbers, moecclDataType_t type) {
  const size_t size = sizeOf(type);
  Bytes bytes(numbers.size() * size);
  for (size_t i = 0; i < numbers.size(); ++i) {
    unsigned char* const to = bytes.data() + i * size;
    if (type == moecclFloat32) {
      std::memcpy(to, &numbers[i], size);
    } else {
      const std::uint16_t half =
          type == moecclFloat16 ? Float16::encode(numbers[i]) : Bfloat16::encode(numbers[i]);
      std::memcpy(to, &half, size);
    }
  }
  return bytes;
}

Numbers numbersOf(int rank, size_t count, moecclDataType_t type, unsigned salt) {
  std::mt19937 random(salt * 1000 + static_cast<unsigned>(rank));
  Numbers numbers(count);
  for (float& number : numbers) {
    const float mantissa = 1 + static_cast<float>(random() % 1024) / 1024;
    const float size = std::ldexp(mantissa, static_cast<int>(random() % 14) - 7);
    number = rounded(random() % 2 ? size : -size, type);
  }
  return numbers;
}

// One algorithm's communicator.
moecclComm_t with(moecclComm_t comm, const std::string& algorithms) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.algorithms = algorithms.c_str();
  moecclComm_t own = nullptr;
  check(moecclCommSplit(comm, 0, 0, &own, &config), comm);
  return own;
}

struct Placement {
  moecclGridShape_t grid;
  std::vector<int> nodes;
};

const Placement kPlacements[] = {
    {{2, 2, 4, moecclOrderEspEp}, {4, 4}},       {{4, 2, 4, moecclOrderEspEp}, {3, 5}},
    {{2, 4, 2, moecclOrderEpEsp}, {4, 4}},       {{2, 2, 3, moecclOrderEspEp}, {3, 3}},
    {{3, 2, 3, moecclOrderEpEsp}, {1, 1, 1, 3}}, {{1, 1, 5, moecclOrderEspEp}, {5}}};

constexpr moecclDataType_t kTypes[] = {moecclFloat32, moecclFloat16, moecclBfloat16};

// Rank of shard `shard` of the experts at `position`.
int rankOf(const moecclGridShape_t& grid, int position, int shard) {
  return grid.order == moecclOrderEspEp ? position * grid.nEsp + shard
                                        : shard * grid.nEp + position;
}

constexpr int kExperts = 2;

// What combine must return to `rank`: for each expert the sum over its shards, in their order, in
// float32 and rounded once.
Bytes combined(const moecclGridShape_t& grid, int rank, moecclDataType_t type, unsigned salt) {
  const int ranks = grid.nEp * grid.nEsp;
  Numbers result;
  for (int position = 0; position < grid.nEp; ++position) {
    std::vector<Numbers> shards;
    for (int shard = 0; shard < grid.nEsp; ++shard)
      shards.push_back(
          numbersOf(rankOf(grid, position, shard), kExperts * ranks * kCount, type, salt));
    for (int expert = 0; expert < kExperts; ++expert)
      for (size_t i = 0; i < kCount; ++i) {
        const size_t at = static_cast<size_t>(expert * ranks + rank) * kCount + i;
        float sum = shards[0][at];
        for (int shard = 1; shard < grid.nEsp; ++shard) sum += shards[shard][at];
        result.push_back(sum);
      }
  }
  return encoded(result, type);
}

TEST(Sums, OfCombineAreTheSameBitsUnderEveryAlgorithm) {
  for (const Placement& placement : kPlacements) {
    const moecclGridShape_t shape = placement.grid;
    const int ranks = shape.nEp * shape.nEsp;
    runJob({.ranks = ranks, .nodes = placement.nodes, .algorithms = {}}, [&](moecclComm_t comm,
                                                                             int rank) {
      for (const std::string algorithms :
           {"combine=flat;combineallgather=sequential", "combine=dedup;combineallgather=pipelined",
            "combine=hierarchical;combineallgather=hierarchical",
            "combine=bruck;combineallgather=bruck", "combineallgather=pipelined:chunks=3"}) {
        moecclComm_t own = with(comm, algorithms);
        moecclGrid_t grid = makeGrid(own, shape);
        unsigned salt = 0;
        for (moecclDataType_t type : kTypes) {
          const Bytes send = encoded(
              numbersOf(rank, static_cast<size_t>(kExperts * ranks) * kCount, type, ++salt), type);
          const Bytes expected = combined(shape, rank, type, salt);
          Bytes recv(expected.size());
          check(moecclCombine(send.data(), recv.data(), kCount, kExperts, type, grid, nullptr),
                own);
          checkThat(recv == expected, algorithms + ": combine, type " + std::to_string(type));

          const size_t block = kCount * sizeOf(type);
          const auto nMp = static_cast<size_t>(shape.nMp);
          Bytes gathered(expected.size() * nMp), all(expected.size() * nMp);
          const int first = rank / shape.nMp * shape.nMp;
          for (int member = 0; member < shape.nMp; ++member) {
            const Bytes part = combined(shape, first + member, type, salt);
            for (size_t expert = 0; expert * block < part.size(); ++expert)
              std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(expert * block), block,
                          all.begin() + static_cast<std::ptrdiff_t>(
                                            (expert * nMp + static_cast<size_t>(member)) * block));
          }
          check(moecclCombineAllGather(send.data(), gathered.data(), kCount, kExperts, type, grid,
                                       nullptr),
                own);
          checkThat(gathered == all,
                    algorithms + ": combine and all-gather, type " + std::to_string(type));
        }
        check(moecclGridDestroy(grid), own);
        check(moecclCommDestroy(own));
      }
    });
    if (HasFailure()) return;
  }
}

// The sum in the order of the ranks, in float32, rounded once.
Numbers summed(int ranks, size_t count, moecclDataType_t type) {
  Numbers sum = numbersOf(0, count, type, 1);
  for (int rank = 1; rank < ranks; ++rank) {
    const Numbers more = numbersOf(rank, count, type, 1);
    for (size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

TEST(Sums, OfLinearAreInTheOrderOfRanks) {
  for (const std::vector<int>& nodes : {std::vector<int>{4, 4}, {1, 2, 4}, {3}}) {
    int ranks = 0;
    for (int size : nodes) ranks += size;
    runJob(
        {.ranks = ranks, .nodes = nodes, .algorithms = "reducescatter=linear;allreduce=linear"},
        [&](moecclComm_t comm, int rank) {
          for (moecclDataType_t type : kTypes) {
            const size_t count = kCount * static_cast<size_t>(ranks), own = kCount * sizeOf(type);
            const Bytes send = encoded(numbersOf(rank, count, type, 1), type);
            const Bytes expected = encoded(summed(ranks, count, type), type);
            Bytes all(send.size()), mine(own);
            check(moecclAllReduce(send.data(), all.data(), count, type, moecclSum, comm, nullptr),
                  comm);
            checkThat(all == expected, "all-reduce, type " + std::to_string(type));
            check(moecclReduceScatter(send.data(), mine.data(), kCount, type, moecclSum, comm,
                                      nullptr),
                  comm);
            checkThat(std::equal(mine.begin(), mine.end(),
                                 expected.begin() +
                                     static_cast<std::ptrdiff_t>(own * static_cast<size_t>(rank))),
                      "reduce-scatter, type " + std::to_string(type));
          }
        });
    if (HasFailure()) return;
  }
}

// Whatever its order is, an all-reduce leaves the same bits everywhere, close to the sum.
TEST(Sums, OfAllReduceAreTheSameBitsOnEveryRank) {
  for (const char* algorithm : {"linear", "ring", "halving_doubling", "hierarchical"})
    for (const std::vector<int>& nodes : {std::vector<int>{4, 4}, {1, 2, 4}, {3, 2}}) {
      int ranks = 0;
      for (int size : nodes) ranks += size;
      std::mutex mutex;
      Numbers first;
      runJob({.ranks = ranks, .nodes = nodes, .algorithms = std::string("allreduce=") + algorithm},
             [&](moecclComm_t comm, int rank) {
               const size_t count = 1001;
               const Numbers send = numbersOf(rank, count, moecclFloat32, 1);
               Numbers sum(count);
               check(moecclAllReduce(send.data(), sum.data(), count, moecclFloat32, moecclSum, comm,
                                     nullptr),
                     comm);
               const std::lock_guard lock(mutex);
               if (first.empty()) first = sum;
               checkThat(std::memcmp(first.data(), sum.data(), count * sizeof(float)) == 0,
                         std::string(algorithm) + " differs between ranks");
               const Numbers expected = summed(ranks, count, moecclFloat32);
               for (size_t i = 0; i < count; ++i)
                 // 8 terms below 128, each addition off by half a unit in the last place at most.
                 checkThat(std::abs(sum[i] - expected[i]) < 1e-3F,
                           std::string(algorithm) + " is off");
             });
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace moeccl::test

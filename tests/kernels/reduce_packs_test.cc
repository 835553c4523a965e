// What the threads of the CUDA kernel do, done here one after another.
#include "kernels/reduce_packs.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/reduce.h"

namespace moeccl {
namespace {

// Any bits but those of NaN: which one a sum is need not be the same.
template <typename Format>
void fill(std::mt19937& random, std::byte* at, std::size_t elements) {
  using Bits = typename Format::Bits;
  for (std::size_t i = 0; i < elements; ++i) {
    Bits bits;
    do {
      const std::uint64_t word = std::uint64_t{random()} << 32 | random();
      std::memcpy(&bits, &word, sizeof bits);
    } while (Format::decode(bits) != Format::decode(bits));
    std::memcpy(at + i * sizeof bits, &bits, sizeof bits);
  }
}

template <typename Format, bool kAligned, typename Op>
void compare(Op how, moecclRedOp_t op, moecclDataType_t datatype, std::size_t terms,
             std::size_t elements) {
  constexpr int kElements = kPackElements<Format, kAligned>;
  SCOPED_TRACE(testing::Message() << "type " << datatype << " op " << op << ", " << terms << " x "
                                  << elements << (kAligned ? "" : " misaligned"));
  std::mt19937 random(static_cast<unsigned>(elements + terms));
  const std::size_t bytes = elements * sizeof(typename Format::Bits), offset = kAligned ? 16 : 1;
  std::vector<std::vector<std::byte>> data(terms);
  ReduceTerms what{nullptr, terms, {}};
  for (std::size_t term = 0; term < terms; ++term) {
    data[term].assign(bytes + 32, std::byte{0x5a});
    fill<Format>(random, data[term].data() + offset, elements);
    what.sources[term] = data[term].data() + offset;
  }
  std::vector<std::byte> expected = data[terms - 1];
  reduce(op, datatype, expected.data() + offset, what.sources, 1, terms, bytes);
  what.dst = data[terms - 1].data() + offset;  // in place
  for (std::uint64_t item = reduceItems(elements, kElements); item-- > 0;)
    reduceItem<Format, Op, kElements>(what, how, elements, item);
  for (std::size_t i = 0; i < data[terms - 1].size(); ++i)
    ASSERT_EQ(data[terms - 1][i], expected[i]) << "byte " << i;
}

TEST(ReducePacks, ThreadsTogetherReduceAsTheCpuDoes) {
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16, "vectors begin at multiples of 16");
  for (int type = 0; type < moecclNumTypes; ++type)
    for (moecclRedOp_t op : {moecclSum, moecclMax, moecclMin})
      for (std::size_t terms : {1, 2, 5})
        for (std::size_t elements : {0, 1, 15, 16, 37, 400}) {
          const auto datatype = static_cast<moecclDataType_t>(type);
          withFormat(datatype, [&]<typename Format>(Format) {
            withOp(op, [&](auto known) {
              compare<Format, true>(known, op, datatype, terms, elements);
              compare<Format, false>(AnyOp{op}, op, datatype, terms, elements);
            });
          });
          if (HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace moeccl

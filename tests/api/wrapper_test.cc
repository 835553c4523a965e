// moeccl.hpp: what its classes own, forward and throw. This program names no layer, and is linked
// without libmoeccl-moe.
#include <gtest/gtest.h>

#include <algorithm>
#include <moeccl/moeccl.hpp>

#include "tests/api/wrapper_ranks.h"

namespace {

using moeccl::Communicator;
using moeccl::test::asRanks;

TEST(Wrapper, ForwardsCollectivesOfEveryElementType) {
  asRanks(3, [](Communicator& comm) {
    const auto exchange = [&]<typename T>(T unit) {
      std::vector<T> in, out(3);
      for (int i = 0; i < 3; ++i) in.push_back(static_cast<T>(unit * (10 * comm.rank() + i)));
      comm.allToAll(in.data(), out.data(), 1);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(out[i], static_cast<T>(unit * (10 * i + comm.rank())));
      const T mine = static_cast<T>(unit * (comm.rank() + 1));
      T sum{};
      comm.allReduce(&mine, &sum, 1);
      EXPECT_EQ(sum, static_cast<T>(unit * 6));
    };
    exchange(std::int8_t{1});
    exchange(std::uint16_t{1});
    exchange(1);
    exchange(1L);
    exchange(1.F);
    exchange(1.);
    comm.barrier();
    comm.close();
  });
}

TEST(Wrapper, OwnsStreamsEventsSplitsAndGrids) {
  asRanks(4, [](Communicator& comm) {
    const std::optional<Communicator> half = comm.split(comm.rank() < 2 ? 0 : MOECCL_SPLIT_NOCOLOR);
    ASSERT_EQ(half.has_value(), comm.rank() < 2);
    if (half) {
      EXPECT_EQ(half->size(), 2);
    }
    std::vector<int> in(4, comm.rank()), out(4);
    {
      const moeccl::Stream stream(comm);
      moeccl::Event event;
      comm.allToAll(in.data(), out.data(), 1, &stream);
      event.record(stream);
      event.synchronize();
      EXPECT_TRUE(event.query());
      stream.synchronize();
    }
    EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3}));
    moeccl::Grid grid(comm, {1, 2, 2, moecclOrderEspEp});
    std::vector<float> rows(2 * 3, 1.F), arrived(4 * 3), back(2 * 3);
    grid.dispatch(rows.data(), arrived.data(), 3, 1);
    grid.combine(arrived.data(), back.data(), 3, 1);
    EXPECT_EQ(back, std::vector<float>(2 * 3, 2.F));  // of two shards
    int size = 0;
    moeccl::check(moecclCommCount(grid.group(moecclGroupEsp), &size));
    EXPECT_EQ(size, 2);
    grid.close();
  });
}

// Each token goes to the expert of the next rank, which doubles it.
TEST(Wrapper, OwnsRoutesAndPasses) {
  asRanks(3, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 3, 1, moecclOrderEspEp});
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = 3;
    config.hidden = 2;
    config.datatype = moecclFloat32;
    const moeccl::Route route(grid, config);
    EXPECT_EQ(route.info().firstExpert, comm.rank());
    const std::vector<std::int32_t> experts(2, (comm.rank() + 1) % 3);
    const std::vector<float> weights(2, 0.5F), gradients(4, 1);
    const float mine = static_cast<float>(comm.rank() + 1);
    std::vector<float> tokens(4, mine), rows(4), output(4), ofWeights(2), ofTokens(4);
    {
      const moeccl::RoutePass pass = route.begin(2, experts.data(), weights.data());
      ASSERT_EQ(pass.rows().rows, 2);
      pass.dispatch(tokens.data(), rows.data());
      for (float& row : rows) row *= 2;
      pass.combine(rows.data(), output.data());
      EXPECT_EQ(output, tokens) << "half of twice";
      std::vector<float> ofRows(4);
      pass.combineBackward(gradients.data(), rows.data(), ofRows.data(), ofWeights.data());
      EXPECT_EQ(ofRows, std::vector<float>(4, 0.5F));
      EXPECT_EQ(ofWeights, std::vector<float>(2, 4 * mine));
      pass.dispatchBackward(ofRows.data(), ofTokens.data());
      EXPECT_EQ(ofTokens, std::vector<float>(4, 0.5F));
    }
    const std::vector<std::int32_t> wrong(2, 3);
    EXPECT_THROW(route.begin(2, wrong.data(), weights.data()), moeccl::Error);
    config.capacityFactor = 3;
    config.schedule = "S1";
    const moeccl::Route scheduled(grid, config);
    EXPECT_THROW(scheduled.save(), moeccl::Error) << "no pass has begun";
    EXPECT_EQ(scheduled.begin(2, experts.data(), weights.data()).rows().dropped, 0);
    EXPECT_NE(scheduled.explain().find("S1"), std::string::npos) << scheduled.explain();
    const std::string saved = scheduled.save();
    scheduled.restore(saved);
    EXPECT_EQ(scheduled.save(), saved);
    comm.barrier();
  });
}

// A type of a program's for elements that C++ has no type for.
struct Half {
  std::uint16_t bits;
};
struct Unknown {
  std::uint16_t bits;
};

}  // namespace
template <>
struct moeccl::DataType<Half> {
  static constexpr moecclDataType_t kValue = moecclFloat16;
};
namespace {

template <typename Call>
void expectRefused(Call call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << text;
  } catch (const moeccl::Error& error) {
    EXPECT_EQ(error.result(), moecclInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(Wrapper, RefusesElementsOfAnotherDatatype) {
  asRanks(1, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 1, 1, moecclOrderEspEp});
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;  // whose datatype is bfloat16
    config.hidden = 2;
    const std::int32_t expert = 0;
    const float weight = 1;
    const double weights = 1;
    float in[2] = {1, 2}, out[2] = {}, ofWeights[1] = {};
    double wide[2] = {};
    std::uint16_t bits[2] = {0x3f80, 0x4000}, came[2] = {}, back[2] = {};
    const moeccl::Route forgotten(grid, config);
    const std::string kIs = " has elements of float32; it must have those of config.datatype, ";
    {
      const moeccl::RoutePass pass = forgotten.begin(1, &expert, &weight);
      expectRefused([&] { pass.dispatch(in, came); }, "tokens" + kIs + "bfloat16");
      expectRefused([&] { pass.dispatch(bits, out); }, "rows" + kIs + "bfloat16");
      expectRefused([&] { pass.combine(in, back); }, "rows" + kIs + "bfloat16");
      expectRefused([&] { pass.combine(bits, out); }, "output" + kIs + "bfloat16");
      expectRefused([&] { pass.combineBackward(in, bits, came, ofWeights); },
                    "outputGradients" + kIs + "bfloat16");
      expectRefused([&] { pass.combineBackward(bits, in, came, ofWeights); },
                    "rows" + kIs + "bfloat16");
      expectRefused([&] { pass.combineBackward(bits, bits, out, ofWeights); },
                    "rowGradients" + kIs + "bfloat16");
      expectRefused([&] { pass.combineBackward(bits, bits, came, wide); },
                    "weightGradients has elements of float64; it must have those of weights");
      expectRefused([&] { pass.dispatchBackward(in, came); }, "rowGradients" + kIs + "bfloat16");
      expectRefused([&] { pass.dispatchBackward(bits, out); }, "tokenGradients" + kIs + "bfloat16");
      const Half half[2] = {};
      expectRefused([&] { pass.dispatch(half, came); },
                    "tokens has elements of float16; it must have those of config.datatype");
      // What may hold anything.
      pass.dispatch(static_cast<const void*>(bits), came);
      EXPECT_EQ(came[1], bits[1]);
      pass.combine(reinterpret_cast<const std::byte*>(bits), reinterpret_cast<Unknown*>(back));
      EXPECT_EQ(back[1], bits[1]);
    }
    expectRefused([&] { forgotten.begin(1, &expert, &weights); },
                  "weights has elements of float64; it must have those of weights, float32");
    config.tokenDatatype = moecclFloat32;
    const moeccl::Route two(grid, config);
    const moeccl::RoutePass pass = two.begin(1, &expert, &weight);
    pass.dispatch(in, out);
    EXPECT_EQ(out[1], 2);
    expectRefused([&] { pass.dispatch(wide, out); },
                  "tokens has elements of float64; it must have those of config.tokenDatatype");
    expectRefused([&] { pass.combine(out, back); }, "rows" + kIs + "bfloat16");
  });
}

// A framework's pointer to memory.
struct Handle {
  float* memory;
  operator float*() const { return memory; }
};

// Rank 0 has no token, and no expert that anybody chooses.
TEST(Wrapper, TakesNullWhereNothingComesOrGoes) {
  asRanks(2, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 2, 1, moecclOrderEspEp});
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = 2;
    config.hidden = 1;
    config.datatype = moecclFloat32;
    const moeccl::Route route(grid, config);
    if (comm.rank() == 0) {
      const moeccl::RoutePass pass = route.begin(0, {}, {});
      pass.dispatch({}, {});
      pass.combine({}, nullptr);
      pass.combineBackward({}, nullptr, {}, {});
      pass.dispatchBackward(nullptr, {});
    } else {
      const std::int32_t expert = 1;
      float token = 3, row = 0, output = 0, gradient = 2, ofRow = 0, ofWeight = 0;
      float weight = 1;
      const moeccl::RoutePass pass = route.begin(1, &expert, Handle{&weight});
      pass.dispatch(Handle{&token}, Handle{&row});
      pass.combine(&row, Handle{&output});
      EXPECT_EQ(output, 3);
      pass.combineBackward(Handle{&gradient}, &row, &ofRow, Handle{&ofWeight});
      EXPECT_EQ(ofWeight, 6);
      pass.dispatchBackward(&ofRow, &gradient);
    }
    float numbers[2] = {};
    comm.allToAll({}, numbers, 0);
    comm.allToAll(numbers, {}, 0);
    comm.allToAll<float>(nullptr, nullptr, 0);
    static_assert(!std::is_convertible_v<float, moeccl::RoutePass::In>);
    static_assert(!std::is_convertible_v<const float*, moeccl::RoutePass::Out>);
    static_assert(!std::is_convertible_v<std::vector<float>, moeccl::RoutePass::In>);
  });
}

TEST(Wrapper, ThrowsWhatTheLibrarySays) {
  asRanks(1, [](Communicator& comm) {
    try {
      comm.allToAll<float>(nullptr, nullptr, 1);
      FAIL() << "nothing was thrown";
    } catch (const moeccl::Error& error) {
      EXPECT_EQ(error.result(), moecclInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("sendbuff"), std::string::npos) << error.what();
    }
  });
}

TEST(Wrapper, TakesAnyAllGather) {
  const Communicator alone =
      Communicator::init(1, 0, [](const void* send, void* recv, std::size_t bytes) {
        std::copy_n(static_cast<const char*>(send), bytes, static_cast<char*>(recv));
        return true;
      });
  EXPECT_EQ(alone.size(), 1);
  EXPECT_TRUE(alone.failedRanks().empty());
  alone.revoke("for a test");
  try {
    alone.barrier();
    ADD_FAILURE() << "it is not revoked";
  } catch (const moeccl::Error& error) {
    EXPECT_EQ(error.result(), moecclRemoteError);
    EXPECT_NE(std::string(error.what()).find("for a test"), std::string::npos) << error.what();
  }
  alone.shrink().barrier();
  // No launcher has started this process.
  EXPECT_EQ(Communicator::init().size(), 1);
  EXPECT_THROW(Communicator::init(1, 0, [](const void*, void*, std::size_t) { return false; }),
               moeccl::Error);
}

}  // namespace

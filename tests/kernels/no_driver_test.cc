// Kernels of a library that was built with CUDA, on a host that has no driver for it.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/blas_cuda.h"
#include "kernels/copy.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "kernels/runtime_cuda.h"
#include "src/base/error.h"

namespace moeccl {
namespace {

class NoDriver : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess) GTEST_SKIP() << "there is a driver";
  }
};

template <typename Function>
void expectNoDriver(Function function) {
  try {
    function();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclUnhandledCudaError);
    EXPECT_NE(std::string(error.what()).find("no usable CUDA driver"), std::string::npos)
        << error.what();
  }
}

TEST_F(NoDriver, IsWhatTheErrorSays) {
  std::byte data[64] = {};
  const std::byte* const sources[] = {data, data + 16};
  const BlockCopy copy{data, 0, data + 32, 0, 16, 1};
  expectNoDriver([&] { cuda::copyBlocks({&copy, 1}, nullptr); });
  expectNoDriver([&] { cuda::reduce(moecclSum, moecclFloat32, data, sources, 1, 2, 16, nullptr); });
  const std::int32_t experts[] = {0};
  const std::int64_t slots[] = {0};
  const float weights[] = {1};
  expectNoDriver([&] {
    cuda::scatterTokens({experts, slots, weights, 1, 1}, data, 16, 1, data + 32, nullptr);
  });
  gates::Config config;
  config.batchTokens = config.embedding = config.experts = config.choices = 1;
  config.capacityTokens = config.capacitySlots = 1;
  expectNoDriver([&] { cuda::Gate(config, moecclFloat32, 1, 1); });
  expectNoDriver([] { cuda::allocate(16); });
  expectNoDriver([] { cuda::allocatePinned(16); });
  expectNoDriver([] { cuda::newStream(true); });
  expectNoDriver([] { cuda::newEvent(); });
  expectNoDriver([] { cuda::synchronize(nullptr); });
  expectNoDriver([&] { cuda::clear(data, 16, nullptr); });
}

TEST_F(NoDriver, NothingToDoIsNoError) {
  const BlockCopy copy{nullptr, 0, nullptr, 0, 0, 3};
  EXPECT_NO_THROW(cuda::copyBlocks({}, nullptr));
  EXPECT_NO_THROW(cuda::copyBlocks({&copy, 1}, nullptr));
  EXPECT_NO_THROW(cuda::reduce(moecclSum, moecclFloat32, nullptr, nullptr, 1, 0, 0, nullptr));
  EXPECT_NO_THROW(cuda::scatterTokens({}, nullptr, 16, 1, nullptr, nullptr));
}

TEST_F(NoDriver, CublasIsNotThereEither) { EXPECT_THROW(cuda::Blas({}), Error); }

}  // namespace
}  // namespace moeccl

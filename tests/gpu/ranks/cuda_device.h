// GPUs, for tests of several ranks.
#pragma once

#include <memory>

#include "tests/api/device.h"

namespace moeccl::gpu {

// 0 where there is no usable driver.
int cudaDevices();
// Makes one the current one, from now on.
std::unique_ptr<test::Device> useCudaDevice(int number);

}  // namespace moeccl::gpu

// kernels_emulated [--seed NUMBER] [TEXT]: the tests of kernels on a GPU, run on the host with
// blocks and warps emulated, their threads in one order after another. Orders show races between
// threads, which sanitizers do not see here: they get one order.
#include <cstdio>
#include <iterator>
#include <vector>

#include "tests/gpu/check.h"
#include "tests/gpu/emulation/emulator.h"
#include "tests/sanitized.h"

int main(int argc, char** argv) {
  using moeccl::emulation::Order;
  const struct {
    Order order;
    const char *name, *seed;
  } all[] = {{Order::rising, "rising", "1"},
             {Order::falling, "falling", "2"},
             {Order::random, "random", "3"}};
  int result = 0;
  for (const auto& one : all) {
    if (moeccl::kSanitized && one.order != Order::random) continue;
    std::printf("threads in %s order\n", one.name);
    moeccl::emulation::setOrder(one.order, 1);
    std::string quick = "--quick", seed = "--seed", number = one.seed;
    std::vector<char*> arguments = {argv[0], quick.data(), seed.data(), number.data()};
    arguments.insert(arguments.end(), argv + 1, argv + argc);
    if (moeccl::gpu::run(static_cast<int>(arguments.size()), arguments.data()) != 0) result = 1;
  }
  return result;
}

// Every case of the table gives the plain loops' result.
#include "tests/kernels/cases.h"

#include <gtest/gtest.h>

namespace moeccl {
namespace {

TEST(Kernels, EveryCaseLikeThePlainLoops) {
  forEachCase([](const KernelCase& test) {
    test.fast();
    test.plain();
    test.settle(*test.fastOutput);
    test.settle(*test.plainOutput);
    EXPECT_TRUE(*test.fastOutput == *test.plainOutput) << test.name();
  });
}

}  // namespace
}  // namespace moeccl

// How rows are shared out to threads of a GPU.
#include "kernels/permute_rows.h"

#include <gtest/gtest.h>

namespace moeccl {
namespace {

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

// The time that a hypervisor has taken, as /proc/stat says it.
#include "perf/common/stolen.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

namespace moeccl::perf {
namespace {

double stolenIn(const std::string& text) {
  std::istringstream stat(text);
  return stolenSeconds(stat) * static_cast<double>(sysconf(_SC_CLK_TCK));
}

TEST(Stolen, EighthColumnOfTheFirstLine) {
  EXPECT_EQ(stolenIn("cpu  10 20 30 40 50 60 70 123 5 6\ncpu0 1 2 3 4 5 6 7 8 9 10\n"), 123);
  EXPECT_EQ(stolenIn("cpu  10 20 30 40 50 60 70 0 0 0\n"), 0);
}

TEST(Stolen, NothingWhereNobodySays) {
  EXPECT_EQ(stolenIn(""), 0);
  EXPECT_EQ(stolenIn("cpu  10 20 30 40\n"), 0);
  EXPECT_EQ(stolenIn("cpu  10 20 30 40 50 60 70 many\n"), 0);
  EXPECT_EQ(stolenIn("intr 10 20 30 40 50 60 70 80\n"), 0);
}

}  // namespace
}  // namespace moeccl::perf

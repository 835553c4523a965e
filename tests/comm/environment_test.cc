// Which variables are known, and which misspelt ones are named.
#include "src/base/environment.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moeccl {
namespace {

std::vector<std::string> unknownOf(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return unknownVariables(environment.data());
}

TEST(Environment, NamesWhatIsMisspelt) {
  EXPECT_EQ(unknownOf({"PATH=/bin", "MOECCL_TIMOUT=3", "MOECCL_ALGO=alltoall=linear"}),
            std::vector<std::string>{"MOECCL_TIMOUT is set, but nothing reads it; is it "
                                     "MOECCL_TIMEOUT that is meant?"});
  EXPECT_EQ(unknownOf({"MOECCL_SCHEDULES=S1"}),
            std::vector<std::string>{"MOECCL_SCHEDULES is set, but nothing reads it; is it "
                                     "MOECCL_SCHEDULE that is meant?"});
}

TEST(Environment, NamesNothingThatIsNotNear) {
  EXPECT_EQ(unknownOf({"MOECCL_FAVOURITE_COLOUR=blue", "MOECCL_="}),
            (std::vector<std::string>{"MOECCL_FAVOURITE_COLOUR is set, but nothing reads it",
                                      "MOECCL_ is set, but nothing reads it"}));
}

TEST(Environment, KnowsWhatIsRead) {
  EXPECT_TRUE(unknownOf({}).empty());
  EXPECT_TRUE(unknownOf({"moeccl_timout=1", "MOECCLTIMEOUT=1", "NOT_MOECCL_TIMOUT=1",
                         "MOECCL_RANK=0", "MOECCL_TIMEOUT", "MOECCL_ROOT=/usr"})
                  .empty());
}

}  // namespace
}  // namespace moeccl

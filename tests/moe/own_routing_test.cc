// What is wrong with a caller's routing is told.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/route/own_pass.h"

namespace moeccl {
namespace {

std::string toldOf(std::vector<std::int32_t> experts) {
  LayerShape shape{};
  shape.tokens = 2;
  shape.choices = 3;
  shape.experts = 4;
  try {
    requireExperts(shape, {experts.data(), nullptr});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OwnRouting, MayRepeatNoExpertInAToken) {
  EXPECT_EQ(toldOf({0, 1, 2, 0, 1, 2}), "");
  EXPECT_EQ(toldOf({-1, -1, -1, 3, -1, -1}), "");
  EXPECT_EQ(toldOf({0, 1, 2, 3, -1, 3}),
            "routing.experts[5] is 3; a token's experts must differ, and token 1 has it before");
}

TEST(OwnRouting, NamesExpertsThatThereAre) {
  EXPECT_EQ(toldOf({0, 4, 2, 0, 1, 2}), "routing.experts[1] is 4; it must be from 0 to 3, or -1");
  EXPECT_EQ(toldOf({0, 1, 2, 0, 1, -2}), "routing.experts[5] is -2; it must be from 0 to 3, or -1");
}

}  // namespace
}  // namespace moeccl

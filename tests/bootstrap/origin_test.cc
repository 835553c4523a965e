// When and by which command something was made.
#include "src/bootstrap/origin.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace moeccl {
namespace {

std::string textOf(const std::vector<std::string>& arguments) { return commandText(arguments); }

TEST(Origin, OfThisProcess) {
  const Origin mine = origin();
  EXPECT_TRUE(
      std::regex_match(mine.date, std::regex("20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ")))
      << mine.date;
  EXPECT_NE(mine.command.find("origin_test"), std::string::npos) << mine.command;
}

TEST(Origin, CommandsAreAsOneTypesThem) {
  EXPECT_EQ(textOf({}), "");
  EXPECT_EQ(textOf({"moeccl-fit", "--grids", "1,8,1;2,4,2", "", "a b", "it's"}),
            "moeccl-fit --grids '1,8,1;2,4,2' '' 'a b' 'it'\\''s'");
  EXPECT_EQ(textOf({"a\nb", "\xff"}), "'a?b' '?'");
}

TEST(Origin, LongCommandsEnd) {
  const std::string text = textOf({std::string(5000, 'a')});
  EXPECT_EQ(text.size(), 4096u);
  EXPECT_EQ(text.substr(4092), "a...");
  EXPECT_EQ(textOf({std::string(4096, 'a')}).back(), 'a');
}

}  // namespace
}  // namespace moeccl

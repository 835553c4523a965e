#include "src/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>

#include "src/text.h"

namespace moeccl {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { setLogLevel(LogLevel::none); }

  // What is on stderr after messages of all levels.
  static std::string messagesAt(LogLevel level) {
    setLogLevel(level);
    ::testing::internal::CaptureStderr();
    log(LogLevel::warn, {3, 8}, "w%d\nsecond line", 1);
    log(LogLevel::info, {}, "i%s", std::string(5000, 'x').c_str());
    log(LogLevel::trace, {0, 1}, "t");
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, SaysAsMuchAsTheLevelAsksFor) {
  EXPECT_EQ(messagesAt(LogLevel::none), "");
  const std::string host = "[^ :]+:" + std::to_string(getpid());
  const std::string warn = "moeccl WARN " + host + " rank 3/8: w1 second line\n";
  const std::string info = "moeccl INFO " + host + ": ix{5000}\n";
  const std::string trace = "moeccl TRACE " + host + " rank 0/1: t\n";
  const auto matches = [](const std::string& text, const std::string& pattern) {
    return std::regex_match(text, std::regex(pattern));
  };
  EXPECT_TRUE(matches(messagesAt(LogLevel::warn), warn)) << messagesAt(LogLevel::warn);
  // Without the long line, on which std::regex recurses.
  const std::string all = messagesAt(LogLevel::trace);
  const std::size_t x = all.find("xxx");
  EXPECT_TRUE(matches(all.substr(0, x), warn + "moeccl INFO " + host + ": i")) << all;
  EXPECT_TRUE(matches(all.substr(all.rfind('x') + 1), "\n" + trace)) << all;
  EXPECT_EQ(messagesAt(LogLevel::info).find("TRACE"), std::string::npos);
}

TEST(Text, FormatsAnyLength) {
  EXPECT_EQ(stringf("%s", ""), "");
  EXPECT_EQ(stringf("%d %s", 7, std::string(10'000, 'y').c_str()), "7 " + std::string(10'000, 'y'));
}

TEST(Text, ListsRanks) {
  EXPECT_EQ(rankList(std::vector{3}), "rank 3");
  EXPECT_EQ(rankList(std::vector{0, 1}), "ranks 0, 1");
  EXPECT_EQ(rankList(std::vector{0, 2, 3, 4, 5, 7}), "ranks 0, 2-5, 7");
  std::vector<int> even;
  for (int rank = 0; rank < 100; rank += 2) even.push_back(rank);
  EXPECT_EQ(rankList(even),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 34 more");
}

}  // namespace
}  // namespace moeccl

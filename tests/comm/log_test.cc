// What is logged at each level, and texts of any length.
#include "src/base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/base/text.h"

namespace moeccl {
namespace {

class Log : public ::testing::Test {
 protected:
  void TearDown() override { setLogLevel(LogLevel::none); }

  // "node0:123"
  static std::string source() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return std::string(host, std::strcspn(host, ".")) + ':' + std::to_string(getpid());
  }

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
  const std::string warn = "moeccl WARN " + source() + " rank 3/8: w1 second line\n";
  const std::string info = "moeccl INFO " + source() + ": i" + std::string(5000, 'x') + "\n";
  const std::string trace = "moeccl TRACE " + source() + " rank 0/1: t\n";
  EXPECT_EQ(messagesAt(LogLevel::warn), warn);
  EXPECT_EQ(messagesAt(LogLevel::info), warn + info);
  EXPECT_EQ(messagesAt(LogLevel::trace), warn + info + trace);
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

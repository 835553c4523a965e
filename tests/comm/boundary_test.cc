// Texts of errors that threads report while the process forks.
#include "src/base/boundary.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/sanitized.h"

namespace moeccl {
namespace {

TEST(Boundary, AChildReportsErrorsWhateverItsParentsThreadsReported) {
  if (kSanitized) GTEST_SKIP() << "sanitizers do not bear forks of threads";
  std::string first;
  report("parent", moecclSystemError, "text", &first);  // makes what is made once
  std::atomic<bool> over = false;
  std::thread other([&over] {
    std::string text;
    while (!over) report("parent", moecclSystemError, "text", &text);
  });
  int status = 0;
  for (int i = 0; i < 300 && status == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::string text;
      report("child", moecclSystemError, "text", &text);
      _exit(text == "child: text" ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) status = -1;
  }
  over = true;
  other.join();
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace moeccl

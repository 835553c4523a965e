// The ends of processes on this host are noticed.
#include "src/watch/process_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <csignal>

namespace moeccl {
namespace {

// A child that sleeps until it is killed, and who it is.
struct Child {
  Child() {
    int pipeEnds[2];
    EXPECT_EQ(pipe(pipeEnds), 0);
    pid = fork();
    if (pid == 0) {
      const ProcessIdentity self = ProcessIdentity::self();
      if (write(pipeEnds[1], &self, sizeof self) != sizeof self) _exit(1);
      for (;;) pause();
    }
    EXPECT_EQ(read(pipeEnds[0], &identity, sizeof identity), static_cast<ssize_t>(sizeof identity));
    close(pipeEnds[0]);
    close(pipeEnds[1]);
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid = 0;
  ProcessIdentity identity;
};

bool readable(const ProcessWatch& watch, int milliseconds) {
  pollfd fd{watch.fd(), POLLIN, 0};
  return poll(&fd, 1, milliseconds) == 1;
}

TEST(ProcessWatch, TellsOfAnEndThatNobodyHasReaped) {
  Child first, second;
  ProcessWatch watch;
  watch.add(10, first.identity);
  watch.add(20, second.identity);
  EXPECT_FALSE(readable(watch, 20));
  EXPECT_EQ(watch.next(), -1);
  kill(second.pid, SIGKILL);
  EXPECT_TRUE(readable(watch, 5000));
  EXPECT_EQ(watch.next(), 20);
  EXPECT_EQ(watch.next(), -1);
  EXPECT_FALSE(readable(watch, 0));
  kill(first.pid, SIGKILL);
  EXPECT_TRUE(readable(watch, 5000));
  EXPECT_EQ(watch.next(), 10);
}

// A child that is forked meanwhile holds all that the watch has open.
TEST(ProcessWatch, TellsOfAnEndOnceWhateverIsForked) {
  Child watched;
  ProcessWatch watch;
  watch.add(1, watched.identity);
  Child holder;
  kill(watched.pid, SIGKILL);
  EXPECT_TRUE(readable(watch, 5000));
  EXPECT_EQ(watch.next(), 1);
  EXPECT_EQ(watch.next(), -1);
  EXPECT_FALSE(readable(watch, 0));
}

TEST(ProcessWatch, TellsOfAnEndBeforeTheWatch) {
  ProcessIdentity gone;
  {
    Child child;
    gone = child.identity;
  }
  Child alive;
  ProcessWatch watch;
  watch.add(1, gone);
  EXPECT_TRUE(readable(watch, 0));
  EXPECT_EQ(watch.next(), 1);
  // Another process with the pid of one that has ended.
  ProcessIdentity earlier = alive.identity;
  ASSERT_NE(earlier.startTime, 0u);
  --earlier.startTime;
  watch.add(2, earlier);
  EXPECT_EQ(watch.next(), 2);
  EXPECT_EQ(watch.next(), -1);
  EXPECT_FALSE(readable(watch, 0));
}

TEST(ProcessWatch, LeavesOthersAlone) {
  ProcessWatch watch;
  watch.add(1, ProcessIdentity::self());
  Child child;
  ProcessIdentity elsewhere = child.identity;
  ++elsewhere.kernel;
  watch.add(2, elsewhere);
  ProcessIdentity inAnotherSpace = child.identity;
  ++inAnotherSpace.pidSpace;
  watch.add(3, inAnotherSpace);
  kill(child.pid, SIGKILL);
  EXPECT_FALSE(readable(watch, 50));
  EXPECT_EQ(watch.next(), -1);
}

}  // namespace
}  // namespace moeccl

// Ranks as processes: the launcher-free start, and who shares a host and a process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/bootstrap/host.h"
#include "src/bootstrap/rendezvous.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/bootstrap/socket.h"
#include "tests/bootstrap/support.h"
#include "tests/sanitized.h"

namespace moeccl {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kLong = 60'000;

class Processes : public test::LeaklessTest {};

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends.data()), 0); }
  ~Pipe() {
    for (int end : ends) close(end);
  }
  std::array<int, 2> ends;
};

// A process that runs `part` and reports what became of it.
class Child {
 public:
  explicit Child(const std::function<void()>& part) {
    pid_ = fork();
    if (pid_ != 0) return;
    const test::Outcome outcome = test::outcomeOf(part);
    const std::string line = std::to_string(outcome.result) + ' ' + outcome.text;
    [[maybe_unused]] const ssize_t written = write(report_.ends[1], line.data(), line.size());
    // What a thread of the parent's holds looks leaked here, where that thread is not.
    if (kAddressSanitized) std::_Exit(0);
    // Through exit handlers and static destructors, which a waiting service must survive.
    std::exit(0);
  }
  ~Child() {
    if (pid_ > 0 && !waited_) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;

  void kill9() { kill(pid_, SIGKILL); }

  test::Outcome outcome() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    char text[4096] = "";
    const ssize_t got = read(report_.ends[0], text, sizeof text - 1);
    if (got <= 0) return {moecclNumResults, "no report"};
    text[got] = '\0';
    const char* space = std::strchr(text, ' ');
    return {static_cast<moecclResult_t>(std::atoi(text)), space + 1};
  }

 private:
  Pipe report_;
  pid_t pid_ = -1;
  bool waited_ = false;
};

// Rank 0 makes the id and hands it to the others through a pipe.
class IdByPipe {
 public:
  explicit IdByPipe(int ranks) : ranks_(ranks) {}

  moecclUniqueId make() {
    const moecclUniqueId id = makeUniqueId();
    for (int i = 1; i < ranks_; ++i)
      EXPECT_EQ(write(pipe_.ends[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    return id;
  }
  moecclUniqueId take() {
    moecclUniqueId id;
    EXPECT_EQ(read(pipe_.ends[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    return id;
  }
  moecclUniqueId get(int rank) { return rank == 0 ? make() : take(); }

 private:
  const int ranks_;
  Pipe pipe_;
};

std::vector<std::unique_ptr<Child>> startRanks(int ranks, const std::function<void(int)>& part) {
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < ranks; ++rank)
    children.push_back(std::make_unique<Child>([&part, rank] { part(rank); }));
  return children;
}

void check(bool holds, const char* what) {
  if (!holds) throw Error(moecclNumResults, what);
}

TEST_F(Processes, JoinAndSeeThatTheyShareTheHost) {
  constexpr int kRanks = 5;
  IdByPipe ids(kRanks);
  auto children = startRanks(kRanks, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(ids.get(rank), kRanks, rank, kLong);
    const std::vector<HostIdentity> hosts = exchangeValue(*oob, hostIdentity());
    check(buildTopology(hosts).nodes() == 1, "more than one node");
    check(!shareProcess(hosts), "one process");
  });
  for (auto& child : children) {
    const test::Outcome outcome = child->outcome();
    EXPECT_EQ(outcome.result, moecclSuccess) << outcome.text;
  }
}

TEST_F(Processes, ForkedWhileTheServiceRuns) {
  if (kAddressSanitized) GTEST_SKIP() << "the sanitizer's allocator may be locked in the child";
  constexpr int kRanks = 4;
  const moecclUniqueId id = makeUniqueId();
  auto children = startRanks(kRanks, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, kRanks, rank, kLong);
    exchangeValue(*oob, rank);
  });
  for (auto& child : children) {
    const test::Outcome outcome = child->outcome();
    EXPECT_EQ(outcome.result, moecclSuccess) << outcome.text;
  }
}

TEST_F(Processes, ADyingRankIsNamedToAll) {
  constexpr int kRanks = 4;
  IdByPipe ids(kRanks);
  Pipe joined;
  auto children = startRanks(kRanks, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(ids.get(rank), kRanks, rank, kLong);
    exchangeValue(*oob, rank);
    check(write(joined.ends[1], "j", 1) == 1, "pipe");
    if (rank == 2) pause();
    exchangeValue(*oob, rank);
  });
  char byte;
  for (int i = 0; i < kRanks; ++i) ASSERT_EQ(read(joined.ends[0], &byte, 1), 1);
  children[2]->kill9();
  for (int rank : {0, 1, 3}) {
    const test::Outcome outcome = children[rank]->outcome();
    test::expectFailure(outcome, moecclRemoteError, "rank 2 (");
    test::expectFailure(outcome, moecclRemoteError, "left while the communicator was set up");
  }
}

TEST_F(Processes, ARankThatDiesWhileOthersAreAwaitedIsNamed) {
  constexpr int kRanks = 3;
  IdByPipe ids(kRanks);
  constexpr std::int64_t kPatience = 2000;  // after which the service gives rank 1 up, too
  Child waiting([&] { join(ids.make(), kRanks, 0, kPatience); });
  Child dying([&] { join(ids.take(), kRanks, 2, kPatience); });
  std::this_thread::sleep_for(200ms);  // rank 1 never comes
  dying.kill9();
  test::expectFailure(waiting.outcome(), moecclRemoteError, "rank 2 (");
}

TEST_F(Processes, TheServicesDeathIsAnErrorToAll) {
  constexpr int kRanks = 3;
  IdByPipe ids(kRanks);
  auto children = startRanks(kRanks, [&](int rank) {
    if (rank == 0) {
      ids.make();
      std::this_thread::sleep_for(200ms);
      throw Error(moecclNumResults, "exits while the service waits");
    }
    join(ids.take(), kRanks, rank, kLong);
  });
  EXPECT_EQ(children[0]->outcome().text, "exits while the service waits");
  for (int rank : {1, 2})
    test::expectFailure(children[rank]->outcome(), moecclRemoteError,
                        "which the process that made the id (");
}

TEST_F(Processes, ExitWhileServicesWaitIsClean) {
  for (int i = 0; i < 20; ++i) {
    Child child([] {
      for (int j = 0; j < 3; ++j) makeUniqueId();
    });
    EXPECT_EQ(child.outcome().result, moecclSuccess);
  }
}

TEST_F(Processes, StrangersDoNotUseUpTheDescriptors) {
  Pipe toParent, toChild;
  Child service([&] {
    rlimit usual{};
    check(getrlimit(RLIMIT_NOFILE, &usual) == 0, "getrlimit");
    rlimit few = usual;
    few.rlim_cur = 40;
    check(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    const moecclUniqueId id = makeUniqueId();
    check(write(toParent.ends[1], &id, sizeof id) == sizeof id, "pipe");
    char byte;
    check(read(toChild.ends[0], &byte, 1) == 1, "pipe");
    // A sanitizer that has no descriptor left takes all memory for unreadable.
    check(setrlimit(RLIMIT_NOFILE, &usual) == 0, "setrlimit");
  });
  moecclUniqueId id;
  ASSERT_EQ(read(toParent.ends[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  std::vector<Socket> crowd(100);
  for (Socket& socket : crowd)
    ASSERT_EQ(startConnect({AF_INET, {127, 0, 0, 1}}, decodeId(id).port, &socket), 0);
  const auto start = std::chrono::steady_clock::now();
  test::expectSuccess(
      test::runThreads(5, [&](int rank) { exchangeValue(*join(id, 5, rank, kLong), rank); }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  ASSERT_EQ(write(toChild.ends[1], "e", 1), 1);
  EXPECT_EQ(service.outcome().text, "");
}

TEST_F(Processes, ThreadsShareAProcess) {
  const moecclUniqueId id = makeUniqueId();
  test::expectSuccess(test::runThreads(3, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, 3, rank, kLong);
    // Nodes may be emulated inside one process.
    const std::vector<HostIdentity> hosts =
        exchangeValue(*oob, hostIdentity(rank == 1 ? "other" : "one"));
    EXPECT_TRUE(shareProcess(hosts));
    EXPECT_EQ(buildTopology(hosts), Topology(std::vector<int>{0, 1, 0}));
  }));
}

}  // namespace
}  // namespace moeccl

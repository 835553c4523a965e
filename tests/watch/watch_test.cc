// What ranks hear of one another: threads on the local watch, processes over control connections.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "src/base/file_descriptor.h"
#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/rendezvous.h"
#include "src/watch/local_watch.h"
#include "src/watch/mesh.h"
#include "src/watch/mesh_watch.h"
#include "tests/bootstrap/support.h"
#include "tests/job.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

using std::chrono::milliseconds;

std::vector<std::string> hostNames(const Topology& topology) {
  std::vector<std::string> names;
  for (int rank = 0; rank < topology.ranks(); ++rank)
    names.push_back("host" + std::to_string(topology.nodeOf(rank)));
  return names;
}

MeshOptions optionsOf(const Topology& topology) {
  MeshOptions options;
  std::memset(options.secret.data(), 7, options.secret.size());
  options.hosts = hostNames(topology);
  options.failureDetectionMs = 3000;
  options.timeoutMs = 20000;
  return options;
}

// Nodes of the sizes.
Topology nodesOf(const std::vector<int>& sizes) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < sizes.size(); ++node)
    nodes.insert(nodes.end(), static_cast<std::size_t>(sizes[node]), static_cast<int>(node));
  return Topology(nodes);
}

// Waits for the next news of a kind.
template <typename What>
bool awaitNews(Watch& watch, What* what, milliseconds limit = std::chrono::seconds(20)) {
  return eventually(
      [&] {
        for (Watch::News news; watch.next(&news);)
          if (auto* found = std::get_if<What>(&news)) {
            *what = *found;
            return true;
          }
        return false;
      },
      limit);
}

TEST(ControlPeers, AreSymmetricFewAndReachOtherNodes) {
  std::vector<Topology> topologies = {nodesOf({1}),       nodesOf({2}),    nodesOf({1, 1}),
                                      nodesOf({3, 3}),    nodesOf({7, 2}), nodesOf({4, 4, 4, 4}),
                                      nodesOf({1, 6, 6}), nodesOf({9, 1}), nodesOf({32, 31})};
  topologies.emplace_back(std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1});
  topologies.emplace_back(std::vector<int>{0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (const Topology& topology : topologies) {
    const int ranks = topology.ranks();
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int> peers = controlPeers(topology, rank);
      EXPECT_TRUE(std::ranges::find(peers, rank) == peers.end());
      bool elsewhere = topology.nodes() == 1;
      for (int peer : peers) {
        const std::vector<int> theirs = controlPeers(topology, peer);
        EXPECT_TRUE(std::ranges::find(theirs, rank) != theirs.end()) << rank << " " << peer;
        elsewhere |= topology.nodeOf(peer) != topology.nodeOf(rank);
      }
      EXPECT_TRUE(elsewhere) << "rank " << rank << " of " << ranks
                             << " is watched by its node alone";
    }
    // Whichever node is lost, the others' ranks stay connected among themselves.
    for (int lost = 0; lost < topology.nodes() && topology.nodes() > 1; ++lost) {
      std::set<int> reached;
      std::vector<int> next;
      for (int rank = 0; rank < ranks && next.empty(); ++rank)
        if (topology.nodeOf(rank) != lost) next.push_back(rank);
      while (!next.empty()) {
        const int rank = next.back();
        next.pop_back();
        if (topology.nodeOf(rank) == lost || !reached.insert(rank).second) continue;
        for (int peer : controlPeers(topology, rank)) next.push_back(peer);
      }
      int living = 0;
      for (int rank = 0; rank < ranks; ++rank) living += topology.nodeOf(rank) != lost;
      EXPECT_EQ(static_cast<int>(reached.size()), living) << "without node " << lost;
    }
  }
}

struct Kind {
  const char* name;
  bool local;
};

class Watches : public testing::TestWithParam<Kind> {
 protected:
  // Runs `part` on threads that have a watch each.
  void run(const Topology& topology, const std::function<void(Watch&)>& part) {
    const int ranks = topology.ranks();
    const moecclUniqueId id = makeUniqueId();
    std::barrier<> made(ranks), over(ranks);
    expectSuccess(runThreads(ranks, [&](int rank) {
      std::unique_ptr<Watch> watch;
      if (GetParam().local) {
        watch = makeLocalWatch(optionsOf(topology).secret, rank, hostNames(topology));
      } else {
        const auto oob = join(id, ranks, rank, 20000);
        watch = makeMeshWatch(*oob, topology, optionsOf(topology));
      }
      made.arrive_and_wait();
      part(*watch);
      over.arrive_and_wait();
    }));
  }
};

TEST_P(Watches, NoticesReachEverybodyInOrder) {
  run(nodesOf({4, 3}), [](Watch& watch) {
    for (int i = 0; i < 20; ++i) {
      Notice notice;
      notice.culprit = i == 0 ? 1000000 : i % watch.ranks();  // there is no such rank
      notice.comm = static_cast<std::uint32_t>(i);
      std::memset(notice.text, 'x', sizeof notice.text);  // without an end
      watch.notify(notice);
    }
    std::vector<std::uint32_t> heard(static_cast<std::size_t>(watch.ranks()));
    for (int i = 0; i < 20 * (watch.ranks() - 1); ++i) {
      Notice notice;
      ASSERT_TRUE(awaitNews(watch, &notice));
      ASSERT_GE(notice.source, 0);
      ASSERT_LT(notice.source, watch.ranks());
      EXPECT_EQ(notice.comm, heard[static_cast<std::size_t>(notice.source)]++);
      EXPECT_EQ(notice.culprit,
                notice.comm == 0 ? -1 : static_cast<int>(notice.comm) % watch.ranks());
      EXPECT_EQ(strnlen(notice.text, sizeof notice.text), sizeof notice.text - 1);
    }
  });
}

TEST_P(Watches, PostsAreReplaced) {
  run(nodesOf({2, 2, 1}), [](Watch& watch) {
    for (int round = 0; round < 3; ++round) {
      const int mine = round * 100 + watch.rank();
      watch.post({7, 1, 2}, std::as_bytes(std::span(&mine, 1)));
      EXPECT_TRUE(
          watch.await({7, 1, 2}, afterMs(20000), [&](const Watch::Posts& posts, const auto&) {
            return std::ranges::all_of(posts,
                                       [&](const auto& post) {
                                         int value = 0;
                                         std::memcpy(&value, post.second.data(), sizeof value);
                                         return value >= round * 100 && value % 100 == post.first;
                                       }) &&
                   static_cast<int>(posts.size()) == watch.ranks();
          }));
    }
    EXPECT_FALSE(watch.await({7, 1, 3}, afterMs(10), [](const Watch::Posts& posts, const auto&) {
      return !posts.empty();
    }));
  });
}

TEST_P(Watches, WhoLeavesIsNotDead) {
  run(nodesOf({2, 3}), [](Watch& watch) {
    if (watch.rank() == 3) return watch.leave();
    Loss loss;
    ASSERT_TRUE(awaitNews(watch, &loss));
    EXPECT_EQ(loss.rank, 3);
    EXPECT_TRUE(loss.left);
    EXPECT_EQ(watch.losses().size(), 1u);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Watches, testing::Values(Kind{"local", true}, Kind{"mesh", false}),
                         [](const auto& info) { return std::string(info.param.name); });

// Runs `part` on processes; those that are `dying` kill themselves in it. All that live must
// succeed.
void runProcesses(const Topology& topology, const std::set<int>& dying,
                  const std::function<void(Watch&, int* told)>& part) {
#ifdef MOECCL_THREAD_SANITIZED
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child that was forked";
#endif
  const int ranks = topology.ranks();
  struct Board {
    int told;  // what `part` shares
    std::atomic<bool> open;
    moecclUniqueId id;
  };
  const Shared<Board> board;
  const auto runRank = [&](int rank) {
    // Not in the parent: the address sanitizer bears no forks of a process that has threads.
    if (rank == 0) {
      board->id = makeUniqueId();
      board->open = true;
    }
    if (!eventually([&] { return board->open.load(); })) throw std::runtime_error("no id");
    const auto oob = join(board->id, ranks, rank, 20000);
    const auto watch = makeMeshWatch(*oob, topology, optionsOf(topology));
    part(*watch, &board->told);
  };
  asProcesses(ranks, runRank, [&](int rank, int status) {
    EXPECT_EQ(status, dying.contains(rank) ? SIGKILL : 0) << "rank " << rank;
  });
}

// Breaks every TCP connection of this process, as something that lies between may; returns how
// many.
int breakConnections() {
  int broken = 0;
  for (int number = 0; number < 1024; ++number) {
    // Others open and close descriptors meanwhile; this one stays the same.
    const FileDescriptor fd(fcntl(number, F_DUPFD_CLOEXEC, 0));
    sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6))
      continue;
    const sockaddr none{AF_UNSPEC, {}};
    broken += connect(fd.get(), &none, sizeof none) == 0;
  }
  return broken;
}

// All hear of all deaths, of which most have no connection with them, and all say the same of them.
TEST(MeshWatch, DeathsAreKnownToAll) {
  const std::set<int> dying = {1, 5, 6};
  const auto began = std::chrono::steady_clock::now();
  runProcesses(nodesOf({4, 4, 3}), dying, [&](Watch& watch, int* told) {
    auto& over = *reinterpret_cast<std::atomic<int>*>(told);
    if (dying.contains(watch.rank())) raise(SIGKILL);
    std::set<int> dead;
    for (Loss loss; dead.size() < dying.size() && awaitNews(watch, &loss);) {
      EXPECT_FALSE(loss.left);
      EXPECT_NE(loss.why.find("process"), std::string::npos) << loss.why;
      dead.insert(loss.rank);
    }
    EXPECT_EQ(dead, dying);
    ++over;
    EXPECT_TRUE(eventually([&] { return over == 8; }));
    // Others may have left by now.
    EXPECT_EQ(std::ranges::count(watch.losses(), false, &Loss::left),
              static_cast<std::ptrdiff_t>(dying.size()));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
}

// Also where a child of it lives on, and nobody of its node is there to tell.
TEST(MeshWatch, TheDeathOfAParentIsKnown) {
  runProcesses(nodesOf({1, 1, 1}), {2}, [](Watch& watch, int* told) {
    auto& over = *reinterpret_cast<std::atomic<int>*>(told);
    if (watch.rank() == 2) {
      if (fork() == 0) {
        for (int i = 0; i < 3000 && over < 2; ++i) usleep(10000);
        _exit(0);
      }
      raise(SIGKILL);
    }
    Loss loss;
    EXPECT_TRUE(awaitNews(watch, &loss));
    EXPECT_EQ(loss.rank, 2);
    EXPECT_FALSE(loss.left);
    ++over;
    EXPECT_TRUE(eventually([&] { return over == 2; }));
  });
}

// Whoever is stopped is alive.
TEST(MeshWatch, AStoppedRankLives) {
  runProcesses(nodesOf({2, 2}), {}, [](Watch& watch, int* told) {
    auto& stopped = *reinterpret_cast<std::atomic<int>*>(told);
    if (watch.rank() == 3) {
      const pid_t self = getpid();
      if (fork() == 0) {
        while (stopped != -1) usleep(1000);
        usleep(5'000'000);  // longer than failureDetectionMs
        kill(self, SIGCONT);
        _exit(0);
      }
      stopped = -1;
      raise(SIGSTOP);
      stopped = 1;
    } else {
      // The stopped rank cannot make them again.
      if (watch.rank() == 1) {
        EXPECT_TRUE(eventually([&] { return stopped == -1; }));
        usleep(100'000);
        EXPECT_GT(breakConnections(), 0);
      }
      EXPECT_TRUE(eventually([&] { return stopped == 1; }, std::chrono::seconds(30)));
    }
    Loss loss;
    EXPECT_FALSE(awaitNews(watch, &loss, milliseconds(200)))
        << "rank " << loss.rank << " " << loss.why;
    ++stopped;
    EXPECT_TRUE(eventually([&] { return stopped >= 1 + watch.ranks(); }));
  });
}

// Nothing is lost that ranks tell while their connections are reset, and nobody is lost.
TEST(MeshWatch, AConnectionThatIsResetIsMadeAgain) {
  constexpr int kNotices = 200;
  const Topology topology = nodesOf({2, 1, 1});
  const int ranks = topology.ranks();
  const moecclUniqueId id = makeUniqueId();
  std::barrier<> made(ranks), over(ranks);
  std::atomic<int> telling = ranks, broken = 0;
  expectSuccess(runThreads(ranks, [&](int rank) {
    std::unique_ptr<Watch> watch;
    {
      const auto oob = join(id, ranks, rank, 20000);
      watch = makeMeshWatch(*oob, topology, optionsOf(topology));
      oob->finish();
    }
    made.arrive_and_wait();
    for (int i = 0; i < kNotices; ++i) {
      Notice notice;
      notice.comm = static_cast<std::uint32_t>(i);
      watch->notify(notice);
      if (rank == 0 && i % 10 == 0) broken += breakConnections();
      std::this_thread::sleep_for(milliseconds(1));
    }
    --telling;
    std::vector<std::uint32_t> heard(static_cast<std::size_t>(ranks));
    int left = kNotices * (ranks - 1);
    for (Notice notice; left > 0 && awaitNews(*watch, &notice); --left)
      EXPECT_EQ(notice.comm, heard[static_cast<std::size_t>(notice.source)]++);
    EXPECT_EQ(left, 0);
    for (const Loss& loss : watch->losses()) ADD_FAILURE() << loss.rank << ": " << loss.why;
    over.arrive_and_wait();
  }));
  EXPECT_GT(broken, 0);
}

// Whoever ends while its connections are reset is dead, and nobody waits for it.
TEST(MeshWatch, AConnectionOfTheDeadIsNotMadeAgain) {
  runProcesses(nodesOf({1, 1, 1}), {2}, [](Watch& watch, int* told) {
    auto& over = *reinterpret_cast<std::atomic<int>*>(told);
    if (watch.rank() == 2) {
      EXPECT_GT(breakConnections(), 0);
      raise(SIGKILL);
    }
    Loss loss;
    EXPECT_TRUE(awaitNews(watch, &loss));
    EXPECT_EQ(loss.rank, 2);
    EXPECT_NE(loss.why.find("has ended"), std::string::npos) << loss.why;
    ++over;
    EXPECT_TRUE(eventually([&] { return over == 2; }));
  });
}

// A Unix socket by a file of this test's.
struct SocketFile {
  explicit SocketFile(const std::string& name) : path("/dev/shm/moeccl." + name) {
    unlink(path.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    socket = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~SocketFile() { unlink(path.c_str()); }
  // When it was made, in seconds from now.
  void setTime(int seconds) {
    timespec times[2];
    clock_gettime(CLOCK_REALTIME, times);
    times[0].tv_sec += seconds;
    times[1] = times[0];
    EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  bool exists() const { return access(path.c_str(), F_OK) == 0; }

  std::string path;
  Socket socket;
};

void expectOneLink(const Mesh& mesh) { EXPECT_EQ(mesh.links.size(), 1u); }

// A rank that has no descriptors left for what it watches with, say.
TEST(MeshConnect, WhatOneRankCannotDoWithItsConnectionsAllAreTold) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(2, [&](int rank) {
    const auto oob = join(id, 2, rank, 20000);
    const Topology topology = nodesOf({2});
    connectMesh(*oob, topology, optionsOf(topology), [&](const Mesh& mesh) {
      expectOneLink(mesh);
      if (rank == 1) throw std::runtime_error("too many open files");
    });
  });
  expectFailure(outcomes[0], moecclRemoteError, "rank 1 failed: too many open files");
  expectFailure(outcomes[1], moecclSystemError, "too many open files");
}

// A process that is killed during the start leaves the file of its socket. Nothing else is removed.
TEST(MeshConnect, FilesOfTheDeadAreRemoved) {
  const auto named = [](char first) {
    std::string digits = std::to_string(getpid());
    return first + std::string(31 - digits.size(), '0') + digits;
  };
  SocketFile dead(named('a')), living(named('b')), fresh(named('c')), foreign(named('d'));
  SocketFile other("mysocket" + std::to_string(getpid()));
  for (SocketFile* each : {&dead, &fresh, &foreign, &other}) each->socket = Socket();
  const std::string plain = "/dev/shm/moeccl." + named('e');
  { std::ofstream(plain) << "data"; }
  for (SocketFile* each : {&dead, &living, &foreign, &other}) each->setTime(-100);
  fresh.setTime(100);
  timespec old[2] = {};
  EXPECT_EQ(utimensat(AT_FDCWD, plain.c_str(), old, 0), 0);
  const bool root = chown(foreign.path.c_str(), 65534, 65534) == 0;
  const moecclUniqueId id = makeUniqueId();
  expectSuccess(runThreads(2, [&](int rank) {
    const auto oob = join(id, 2, rank, 20000);
    const Topology topology = nodesOf({2});
    connectMesh(*oob, topology, optionsOf(topology), expectOneLink);
  }));
  EXPECT_FALSE(dead.exists());
  EXPECT_TRUE(living.exists());
  EXPECT_TRUE(fresh.exists());
  EXPECT_TRUE(other.exists());
  EXPECT_TRUE(foreign.exists() || !root);
  EXPECT_EQ(unlink(plain.c_str()), 0);
}

// The all-gather of rank 1 of two, whose rank 0 listens at `path`, as this test does.
class WithImpostor final : public Oob {
 public:
  explicit WithImpostor(std::string path) : path_(std::move(path)) {}
  int rank() const override { return 1; }
  int ranks() const override { return 2; }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    std::memset(recv, 0, bytes);
    std::memcpy(static_cast<char*>(recv) + bytes, send, bytes);
    // A contact ends with a path of 64 bytes (mesh_connect.cc), and comes after an agreement.
    if (++calls_ == 2)
      std::memcpy(static_cast<char*>(recv) + bytes - 64, path_.data(), path_.size());
  }

 private:
  const std::string path_;
  int calls_ = 0;
};

// A launcher's all-gather, which tells nothing of ranks that have failed. `elsewhere`: a rank whose
// Unix socket this rank takes to be at another path.
class OfLauncher final : public Oob {
 public:
  OfLauncher(Oob& carrier, int elsewhere) : carrier_(carrier), elsewhere_(elsewhere) {}
  int rank() const override { return carrier_.rank(); }
  int ranks() const override { return carrier_.ranks(); }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    carrier_.allgather(send, recv, bytes);
    if (++calls_ == 2 && elsewhere_ >= 0)
      std::strcpy(static_cast<char*>(recv) + (elsewhere_ + 1) * bytes - 64, "/dev/shm/nowhere");
  }

 private:
  Oob& carrier_;
  const int elsewhere_;
  int calls_ = 0;
};

// Rank 0 has none with either of the two, and so has all of its own.
TEST(MeshConnect, WhereOneRankCannotConnectAllAreToldByALauncherToo) {
  const moecclUniqueId id = makeUniqueId();
  const std::vector<Outcome> outcomes = runThreads(8, [&](int rank) {
    const auto oob = join(id, 8, rank, 20000);
    OfLauncher launcher(*oob, rank == 5 ? 3 : -1);
    const Topology topology = nodesOf({8});
    MeshOptions options = optionsOf(topology);
    options.timeoutMs = 1000;
    connectMesh(launcher, topology, options, [](const Mesh&) {});
  });
  expectFailure(outcomes[0], moecclRemoteError, "has waited 1000 ms for rank 5 to connect");
  expectFailure(outcomes[3], moecclTimeout, "rank 3 has waited 1000 ms for rank 5 to connect");
  expectFailure(outcomes[5], moecclRemoteError, "rank 5 cannot reach rank 3 on host0");
}

constexpr std::size_t kGreeting = 40, kChallenge = 72, kAnswer = 44;  // handshake.h

// Reads until the handshake wants no more, or the peer has closed.
void hear(Handshake& handshake, const Socket& socket) {
  for (std::byte in[kChallenge]; handshake.wanted() > 0 && handshake.toSend().empty();) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (poll(&polled, 1, 10'000) <= 0) return;
    const ssize_t got = recv(socket.get(), in, std::min(sizeof in, handshake.wanted()), 0);
    if (got <= 0) return;
    handshake.received(std::span(in).first(static_cast<std::size_t>(got)));
  }
}

// Says so many bytes of what the handshake has to say.
void say(Handshake& handshake, const Socket& socket, std::size_t bytes) {
  const auto all = handshake.toSend();
  EXPECT_EQ(send(socket.get(), all.data(), std::min(bytes, all.size()), MSG_NOSIGNAL),
            static_cast<ssize_t>(std::min(bytes, all.size())));
  handshake.sent(std::min(bytes, all.size()));
}

// Accepts a connection, which ends once so many bytes are said; the last one is the welcome.
void meet(const Socket& listener, std::size_t bytes) {
  Socket socket;
  ASSERT_TRUE(eventually([&] {
    socket = Socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return static_cast<bool>(socket);
  }));
  Handshake handshake = Handshake::acceptor(optionsOf(nodesOf({2})).secret);
  hear(handshake, socket);
  say(handshake, socket, bytes);
  if (bytes < kChallenge) return;
  hear(handshake, socket);
  EXPECT_EQ(handshake.state(), Handshake::State::done);
  if (bytes > kChallenge) {
    ASSERT_EQ(send(socket.get(), "w", 1, 0), 1);
  }
}

// A peer whom a crowd of strangers calls closes what it has accepted, of ranks too.
TEST(MeshConnect, IsTriedAgainUntilThePeerHasWelcomedTheRank) {
  const SocketFile file("crowded" + std::to_string(getpid()));
  ASSERT_EQ(listen(file.socket.get(), 10), 0);
  const Topology topology = nodesOf({2});
  Outcome outcome;
  std::thread rank([&] {
    outcome = outcomeOf([&] {
      WithImpostor oob(file.path);
      connectMesh(oob, topology, optionsOf(topology), expectOneLink);
    });
  });
  for (std::size_t bytes = 0; bytes <= kChallenge + 1; ++bytes) meet(file.socket, bytes);
  rank.join();
  expectSuccess({outcome});
}

// The all-gather of rank 0 of two, at whose socket this test dials.
class WithDialer final : public Oob {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    std::memset(recv, 0, 2 * bytes);
    std::memcpy(recv, send, bytes);
    if (++calls_ == 2) path_.set_value(static_cast<const char*>(send) + bytes - 64);
  }
  std::string path() { return path_.get_future().get(); }

 private:
  std::promise<std::string> path_;
  int calls_ = 0;
};

// A rank whose connection ends, whatever it has said, may dial again.
TEST(MeshConnect, WaitsForThePeerWhereverItsConnectionIsCut) {
  const Topology topology = nodesOf({2});
  const MeshOptions options = optionsOf(topology);
  WithDialer oob;
  Outcome outcome;
  std::thread rank(
      [&] { outcome = outcomeOf([&] { connectMesh(oob, topology, options, expectOneLink); }); });
  const std::string path = oob.path();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  for (std::size_t bytes = 0; bytes <= kGreeting + kAnswer; ++bytes) {
    const Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    Handshake handshake = Handshake::dialer(options.secret, {1, 2, 0});
    say(handshake, socket, bytes);
    if (bytes < kGreeting) continue;
    hear(handshake, socket);
    say(handshake, socket, bytes - kGreeting);
    char welcome = 0;
    if (bytes < kGreeting + kAnswer) continue;
    EXPECT_EQ(recv(socket.get(), &welcome, 1, 0), 1);
    EXPECT_EQ(welcome, 'w');
    rank.join();
  }
  expectSuccess({outcome});
}

TEST(MeshConnect, IsNotTriedAgainWhereThePeerHasEnded) {
  SocketFile file("ended" + std::to_string(getpid()));
  ASSERT_EQ(listen(file.socket.get(), 10), 0);
  const Topology topology = nodesOf({2});
  Outcome outcome;
  std::thread rank([&] {
    outcome = outcomeOf([&] {
      WithImpostor oob(file.path);
      connectMesh(oob, topology, optionsOf(topology), expectOneLink);
    });
  });
  meet(file.socket, kChallenge);
  file.socket = Socket();
  rank.join();
  expectFailure(outcome, moecclRemoteError,
                "rank 1 cannot reach rank 0 on host0: Connection refused");
}

// A peer that proved itself but then sends nonsense is dropped, and nothing else happens.
TEST(MeshWatch, NonsenseOfAPeerEndsItsConnection) {
  const Topology topology = nodesOf({2});
  for (const char* nonsense : {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
                               "\xff\xff\xff\xff\xff\xff\xff\xff",
                               "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n"}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    Mesh mesh;
    mesh.processes.resize(2);
    mesh.links.push_back({1, Socket(pair[0])});
    const auto watch = makeMeshWatch(0, topology, optionsOf(topology), std::move(mesh));
    Socket peer(pair[1]);
    ASSERT_GT(send(peer.get(), nonsense, std::strlen(nonsense), 0), 0);
    Loss loss;
    ASSERT_TRUE(awaitNews(*watch, &loss));
    EXPECT_EQ(loss.rank, 1);
  }
}

// Messages that are well framed, but whose content is out of range, are dropped.
TEST(MeshWatch, ContentOutOfRangeIsDropped) {
  const Topology topology = nodesOf({3});
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  Mesh mesh;
  mesh.processes.resize(3);
  mesh.links.push_back({1, Socket(pair[0])});
  const auto watch = makeMeshWatch(0, topology, optionsOf(topology), std::move(mesh));
  Socket peer(pair[1]);
  struct {
    std::uint32_t kind;
    std::int32_t origin;
    std::uint64_t sequence, bytes;
    std::int32_t body[64];
  } message{};
  message.origin = 2;
  for (std::uint32_t kind : {0u, 2u, 3u, 9u, 0xffffffffu})
    for (const std::uint64_t bytes : {std::size_t{0}, std::size_t{3}, sizeof message.body}) {
      message.kind = kind;
      ++message.sequence;
      message.bytes = bytes;
      message.body[0] = kind == 2 ? 0x7fffffff : -1;
      ASSERT_GT(send(peer.get(), &message, 24 + bytes, 0), 0);
    }
  const char last = 0;
  watch->post({1, 1, 1}, std::as_bytes(std::span(&last, 1)));
  Loss loss;
  EXPECT_FALSE(awaitNews(*watch, &loss, milliseconds(300))) << loss.rank;
}

}  // namespace
}  // namespace moeccl::test

// Which processes are on the same node, and how nodes are numbered.
#include "src/bootstrap/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "src/bootstrap/hardware.h"

namespace moeccl {
namespace {

TEST(Host, IsTheSameForAllThreads) {
  const HostIdentity here = hostIdentity();
  HostIdentity there;
  std::thread([&] { there = hostIdentity(); }).join();
  EXPECT_EQ(here, there);
  EXPECT_NE(here.name[0], '\0');
}

TEST(Host, EqualNodeIdsAreOneNode) {
  const HostIdentity found = hostIdentity(), a = hostIdentity("a"), b = hostIdentity("b");
  EXPECT_EQ(a.node, hostIdentity("a").node);
  EXPECT_NE(a.node, b.node);
  EXPECT_NE(a.node, found.node);
  EXPECT_STREQ(a.name, "a");
  EXPECT_EQ(a.process, found.process);
  const std::string longId(1000, 'n');
  EXPECT_NE(hostIdentity(longId).node, hostIdentity(longId + "x").node);
  EXPECT_EQ(std::strlen(hostIdentity(longId).name), sizeof(HostIdentity::name) - 1);
}

// The identity as a forked process sees it after `change`; false when that was not permitted.
template <typename Change>
bool identityInChild(Change change, HostIdentity* identity) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    if (!change()) _exit(1);
    const HostIdentity mine = hostIdentity();
    _exit(write(ends[1], &mine, sizeof mine) == sizeof mine ? 0 : 1);
  }
  close(ends[1]);
  const bool got = read(ends[0], identity, sizeof *identity) == sizeof *identity;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return got;
}

TEST(Host, AnotherProcessIsOnTheSameNode) {
  HostIdentity other;
  ASSERT_TRUE(identityInChild([] { return true; }, &other));
  const HostIdentity here = hostIdentity();
  EXPECT_EQ(other.node, here.node);
  EXPECT_NE(other.process, here.process);
  EXPECT_TRUE(shareProcess(std::vector{here, here}));
  EXPECT_FALSE(shareProcess(std::vector{here, other}));
}

bool withNamespaces(int flags) {
  return unshare(flags) == 0 || unshare(flags | CLONE_NEWUSER) == 0;
}

TEST(Host, AnotherNetworkAndNameAreNoOtherNode) {
  HostIdentity other;
  const auto change = [] {
    constexpr char kName[] = "elsewhere";
    return withNamespaces(CLONE_NEWNET | CLONE_NEWUTS) && sethostname(kName, sizeof kName - 1) == 0;
  };
  if (!identityInChild(change, &other)) GTEST_SKIP() << "no namespaces here";
  EXPECT_STREQ(other.name, "elsewhere");
  EXPECT_EQ(other.node, hostIdentity().node);
}

TEST(Host, WhatCannotShareMemoryIsAnotherNode) {
  const HostIdentity here = hostIdentity();
  HostIdentity other;
  if (!identityInChild([] { return withNamespaces(CLONE_NEWIPC); }, &other))
    GTEST_SKIP() << "no namespaces here";
  EXPECT_NE(other.node, here.node);
  const auto ownShm = [] {
    return withNamespaces(CLONE_NEWNS) &&
           mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
  };
  if (!identityInChild(ownShm, &other)) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_NE(other.node, here.node);
}

TEST(Host, TopologyNumbersNodesAsRanksMentionThem) {
  const HostIdentity a = hostIdentity("a"), b = hostIdentity("b"), c = hostIdentity("c");
  EXPECT_EQ(buildTopology(std::vector{b, a, b, c, a}), Topology(std::vector<int>{0, 1, 0, 2, 1}));
  EXPECT_EQ(buildTopology(std::vector{c}), Topology::even(1, 1));
}

TEST(Host, DescribesTheHardware) {
  const Hardware hardware = describeHardware();
  EXPECT_NE(hardware.summary.find(" PU"), std::string::npos) << hardware.summary;
  EXPECT_NE(hardware.summary.find(" NUMA node"), std::string::npos) << hardware.summary;
  EXPECT_NE(hardware.summary.find(" GiB"), std::string::npos) << hardware.summary;
  EXPECT_EQ(hardware.summary.find(" 0 PU"), std::string::npos) << hardware.summary;
  ASSERT_FALSE(hardware.numaNodes.empty());
  EXPECT_GE(hardware.numaNodes.front(), 0);
}

}  // namespace
}  // namespace moeccl

// What is kept of probed links, and what the cluster is called that they are kept for.
#include "src/probe/cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "src/base/error.h"
#include "src/bootstrap/interfaces.h"
#include "src/bootstrap/network.h"
#include "tests/temporary_folder.h"

namespace moeccl {
namespace {

namespace fs = std::filesystem;

class ProbeCache : public testing::Test {
 protected:
  static Profile sample() {
    Profile profile;
    profile.fingerprint = {{4, 4}, "a processor", 2, "tcp", "0.1.0"};
    profile.links = LinkFit{{}, 0.1, 0.2};
    profile.links->links.betaUplink = 8e-9;
    return profile;
  }
  const test::TemporaryFolder own_;
  const std::string folder_ = own_.path();
};

TEST_F(ProbeCache, GivesBackWhatItWasGiven) {
  const std::string deep = folder_ + "/not/there/yet";
  saveProbed(deep, "one", sample());
  const auto found = loadProbed(deep, "one", sample().fingerprint);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found->links, *sample().links);
  EXPECT_FALSE(loadProbed(deep, "another", sample().fingerprint));
}

TEST_F(ProbeCache, OfAnotherClusterIsNothing) {
  saveProbed(folder_, "one", sample());
  Fingerprint other = sample().fingerprint;
  other.ranksPerNode = {4, 4, 4};
  EXPECT_FALSE(loadProbed(folder_, "one", other));
}

TEST_F(ProbeCache, ExpiresAfterAWeek) {
  saveProbed(folder_, "one", sample());
  const std::string file = probedFile(folder_, "one");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(file, now - kProbeExpires + std::chrono::minutes(5));
  EXPECT_TRUE(loadProbed(folder_, "one", sample().fingerprint));
  fs::last_write_time(file, now - kProbeExpires - std::chrono::minutes(5));
  std::string why;
  EXPECT_FALSE(loadProbed(folder_, "one", sample().fingerprint, &why));
  EXPECT_EQ(why, "it is old");
  // By a clock that was wrong.
  fs::last_write_time(file, now + kProbeExpires + std::chrono::minutes(5));
  EXPECT_FALSE(loadProbed(folder_, "one", sample().fingerprint));
}

TEST_F(ProbeCache, WhatIsNoProfileIsNothing) {
  std::string why;
  EXPECT_FALSE(loadProbed(folder_, "one", sample().fingerprint, &why));
  EXPECT_EQ(why, "");  // there is none
  std::ofstream(probedFile(folder_, "one")) << "{\"schema\": ";
  EXPECT_FALSE(loadProbed(folder_, "one", sample().fingerprint, &why));
  EXPECT_NE(why, "");
  fs::remove(probedFile(folder_, "one"));
  fs::create_directory(probedFile(folder_, "one"));
  EXPECT_FALSE(loadProbed(folder_, "one", sample().fingerprint));
  EXPECT_FALSE(loadProbed("", "one", sample().fingerprint));
  Profile without = sample();
  without.links.reset();
  saveProbed(folder_, "two", without);
  EXPECT_FALSE(loadProbed(folder_, "two", sample().fingerprint));
}

TEST_F(ProbeCache, LinksThatWereDisturbedServeOneJobAlone) {
  EXPECT_TRUE(isWorthKeeping({{}, 0.3, 2}, 20));
  EXPECT_FALSE(isWorthKeeping({{}, 0.7, 2}, 20));
  EXPECT_FALSE(isWorthKeeping({{}, 0, 0}, 3));
}

TEST_F(ProbeCache, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THROW(saveProbed(folder_ + "/file/below", "one", sample()), Error);
}

TEST(CacheFolder, IsTheUsers) {
  std::map<std::string, std::string> variables;
  const Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_EQ(cacheFolder(environment), "");
  variables["HOME"] = "/home/somebody";
  EXPECT_EQ(cacheFolder(environment), "/home/somebody/.cache/moeccl");
  variables["XDG_CACHE_HOME"] = "/var/cache/other";
  EXPECT_EQ(cacheFolder(environment), "/var/cache/other/moeccl");
  variables["XDG_CACHE_HOME"] = "relative";  // the specification: to be ignored
  EXPECT_EQ(cacheFolder(environment), "/home/somebody/.cache/moeccl");
}

// A made-up sysfs, of made-up interfaces.
TEST_F(ProbeCache, NetworksThatDifferInSpeedAreCalledOtherwise) {
  const IpAddress address{};
  std::vector<InterfaceAddress> host = {
      {"lo", address, true}, {"docker0", address}, {"eth0", address}, {"eth1", address}};
  const std::string at = folder_ + "/class/net/eth0";
  fs::create_directories(at);
  std::ofstream(at + "/speed") << "1000\n";
  std::ofstream(at + "/mtu") << "1500\n";
  const std::string fast = describeNetwork("", folder_, host);
  EXPECT_EQ(fast, "1000 Mb/s MTU 1500");
  // Those that data do not take come and go.
  host.push_back({"veth1a2b", address});
  EXPECT_EQ(describeNetwork("", folder_, host), fast);
  host.pop_back();
  std::erase_if(host, [](const InterfaceAddress& each) { return each.name == "docker0"; });
  EXPECT_EQ(describeNetwork("", folder_, host), fast);
  EXPECT_EQ(describeNetwork("=eth1", folder_, host), "");
  EXPECT_EQ(describeNetwork("lo", folder_, host), "");
  EXPECT_EQ(describeNetwork("=none", folder_, host), "");
  std::ofstream(at + "/speed") << "100\n";
  EXPECT_EQ(describeNetwork("", folder_, host), "100 Mb/s MTU 1500");
  // A profile of one is refused on the other, either way.
  Fingerprint slower = sample().fingerprint, faster = slower;
  slower.network = describeNetwork("", folder_, host);
  faster.network = fast;
  EXPECT_EQ(differences(slower, faster),
            "it was made for network \"1000 Mb/s MTU 1500\", here is \"100 Mb/s MTU 1500\"");
  EXPECT_EQ(differences(faster, slower),
            "it was made for network \"100 Mb/s MTU 1500\", here is \"1000 Mb/s MTU 1500\"");
  std::ofstream(at + "/speed") << "-1\n";
  EXPECT_EQ(describeNetwork("", folder_, host), "MTU 1500");
  fs::create_directories(folder_ + "/class/infiniband/mlx5_0/ports/1");
  std::ofstream(folder_ + "/class/infiniband/mlx5_0/ports/1/rate") << "200 Gb/sec (4X HDR)\n";
  EXPECT_EQ(describeNetwork("", folder_, host), "MTU 1500, mlx5_0 200 Gb/sec (4X HDR)");
}

}  // namespace
}  // namespace moeccl

// Which network interfaces a choice means, and which addresses are dialed.
#include "src/bootstrap/interfaces.h"

#include <gtest/gtest.h>

#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

IpAddress v4(std::uint8_t last) { return {AF_INET, {10, 0, 0, last}}; }
IpAddress v6(std::uint8_t last) {
  IpAddress address{AF_INET6, {0xfd}};
  address.bytes[15] = last;
  return address;
}

const std::vector<InterfaceAddress> kHost = {
    {.name = "lo", .address = {AF_INET, {127, 0, 0, 1}}, .loopback = true},
    {.name = "docker0", .address = v4(1)},
    {.name = "eth0", .address = v6(2), .running = false},
    {.name = "eth0", .address = v4(2), .running = false},
    {.name = "eth1", .address = v4(3)},
    {.name = "ib0", .address = v6(4)},
};

using Addresses = std::vector<IpAddress>;

TEST(Interfaces, NamesAreTakenAsInNccl) {
  EXPECT_TRUE(takesInterface("", "eth0"));
  EXPECT_TRUE(takesInterface("eth", "eth0"));
  EXPECT_TRUE(takesInterface("ib,eth", "eth0"));
  EXPECT_TRUE(takesInterface(",eth,", "eth0"));
  EXPECT_FALSE(takesInterface("th", "eth0"));
  EXPECT_FALSE(takesInterface("eth01", "eth0"));
  EXPECT_TRUE(takesInterface("=eth0", "eth0"));
  EXPECT_TRUE(takesInterface("=ib0,eth0", "eth0"));
  EXPECT_FALSE(takesInterface("=eth", "eth0"));
  EXPECT_FALSE(takesInterface("^eth", "eth0"));
  EXPECT_TRUE(takesInterface("^docker,lo", "eth0"));
  EXPECT_FALSE(takesInterface("^=eth0,lo", "eth0"));
  EXPECT_TRUE(takesInterface("^=eth", "eth0"));
}

TEST(Interfaces, TheChosenOnesAddressesAlone) {
  EXPECT_EQ(addressesToListenOn("", kHost), Addresses{v4(3)});
  EXPECT_EQ(addressesToListenOn("=eth0", kHost), (Addresses{v4(2), v6(2)}));
  EXPECT_EQ(addressesToListenOn("ib", kHost), Addresses{v6(4)});
  EXPECT_EQ(addressesToListenOn("docker", kHost), Addresses{v4(1)});
  EXPECT_EQ(addressesToListenOn("^eth1", kHost), Addresses{v6(4)});
  EXPECT_EQ(addressesToListenOn("^eth,ib", kHost), Addresses{v4(1)});
  EXPECT_EQ(addressesToListenOn("lo", kHost), Addresses{kHost[0].address});
  EXPECT_EQ(addressesToListenOn("", std::span(kHost).first(1)), Addresses{kHost[0].address});
}

TEST(Interfaces, AFamilyThatBothHaveIsDialed) {
  const std::vector<IpEndpoint> both = {{v4(1), 41}, {v6(1), 61}};
  const auto port = [](std::span<const IpEndpoint> theirs, const Addresses& mine) {
    return endpointToDial(theirs, mine).port;
  };
  EXPECT_EQ(port(both, {v4(2), v6(2)}), 41);
  EXPECT_EQ(port(both, {v4(2)}), 41);
  EXPECT_EQ(port(both, {v6(2)}), 61);
  EXPECT_EQ(port(std::span(both).last(1), {v4(2), v6(2)}), 61);
  EXPECT_EQ(port(std::span(both).last(1), {v4(2)}), 61);  // the kernel says why not
}

TEST(Interfaces, AChoiceOfNoneIsAnErrorThatNamesThemAll) {
  test::expectFailure(
      test::outcomeOf([] { addressesToListenOn("=eth", kHost); }), moecclInvalidArgument,
      "MOECCL_SOCKET_IFNAME is \"=eth\", which takes no interface of this host; those that "
      "are up and have an address: lo, docker0, eth0, eth1, ib0");
  test::expectFailure(test::outcomeOf([] { addressesToListenOn("", {}); }), moecclSystemError,
                      "no network interface");
}

TEST(Interfaces, ThisHostCanBeListenedOn) {
  for (const IpAddress& address : addressesToListenOn("", interfaceAddresses())) {
    std::uint16_t port = 0;
    const Socket listener = listenOn(address, &port);
    EXPECT_TRUE(listener);
    EXPECT_NE(port, 0);
  }
}

}  // namespace
}  // namespace moeccl

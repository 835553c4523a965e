// One message of more than 2^31 bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "src/exec/ucx.h"
#include "tests/exec/transport_world.h"

namespace moeccl::test {
namespace {

constexpr std::size_t kBytes = (std::size_t{9} << 28) + 5;  // 2.25 GiB
static_assert(kBytes > std::size_t{1} << 31);
constexpr std::size_t kPeriod = 1000003;  // a prime, so that no shift by a power of two fits

void sendBeyondTwoGibibytes(const Kind& kind) {
  const std::string printed = runJob(kind, 2, [](Member& me) {
    const std::vector<std::uint8_t> period = pattern(1, kPeriod);
    const auto data = std::make_unique_for_overwrite<std::uint8_t[]>(kBytes);
    Probe probe;
    if (me.rank() == 0) {
      for (std::size_t at = 0; at < kBytes; at += kPeriod)
        std::memcpy(&data[at], period.data(), std::min(kPeriod, kBytes - at));
      me.transport.send(1, tagOf(0, 1), data.get(), kBytes, &probe);
    } else {
      me.transport.recv(0, tagOf(0, 1), data.get(), kBytes, &probe);
    }
    ASSERT_TRUE(finish(me.transport, {&probe}, 50000));
    EXPECT_EQ(probe.status, TransferStatus::ok);
    if (me.rank() == 0) return;
    EXPECT_EQ(probe.arrived, kBytes);
    for (std::size_t at = 0; at < kBytes; at += kPeriod)
      ASSERT_EQ(std::memcmp(&data[at], period.data(), std::min(kPeriod, kBytes - at)), 0) << at;
  });
  EXPECT_EQ(printed, "");
}

TEST(UcxTransport, MessageBeyondTwoGibibytes) {
  sendBeyondTwoGibibytes(
      {"Processes", true, [](int rank, int ranks) { return makeUcxTransport(rank, ranks); }});
}

TEST(UcxTransport, MessageBeyondTwoGibibytesFarAway) {
  sendBeyondTwoGibibytes({"FarAway", true, [](int rank, int ranks) {
                            setenv("UCX_TLS", "tcp", 1);
                            return makeUcxTransport(rank, ranks);
                          }});
}

}  // namespace
}  // namespace moeccl::test

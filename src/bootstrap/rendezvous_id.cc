// Writes an id at the offsets that rendezvous_id.h draws, and reads and checks it.
#include "src/bootstrap/rendezvous_id.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/bootstrap/digest.h"
#include "src/bootstrap/rendezvous_wire.h"

namespace moeccl {
namespace {

constexpr char kMagic[8] = {'m', 'o', 'e', 'c', 'c', 'l', 'i', 'd'};
constexpr std::size_t kVersionAt = 8, kPortAt = 10, kSecretAt = 12, kAddressesAt = 44,
                      kChecksumAt = 120;
static_assert(kSecretAt + sizeof(Secret) == kAddressesAt);
static_assert(std::endian::native == std::endian::little);

std::array<std::byte, MOECCL_UNIQUE_ID_BYTES - kChecksumAt> checksum(const moecclUniqueId& id) {
  const Digest digest = sha256({std::as_bytes(std::span(id.internal)).first(kChecksumAt)});
  std::array<std::byte, MOECCL_UNIQUE_ID_BYTES - kChecksumAt> sum;
  std::copy_n(digest.begin(), sum.size(), sum.begin());
  return sum;
}

std::size_t encodedSize(const IpAddress& address) { return 1 + address.size(); }

}  // namespace

moecclUniqueId encodeId(const RendezvousId& rendezvous) {
  moecclUniqueId id{};
  char* bytes = id.internal;
  std::memcpy(bytes, kMagic, sizeof kMagic);
  std::memcpy(bytes + kVersionAt, &kRendezvousVersion, sizeof kRendezvousVersion);
  std::memcpy(bytes + kPortAt, &rendezvous.port, sizeof rendezvous.port);
  std::memcpy(bytes + kSecretAt, rendezvous.secret.data(), rendezvous.secret.size());

  std::size_t at = kAddressesAt;
  const auto append = [&](const IpAddress& address) {
    bytes[at] = address.family == AF_INET ? 4 : 6;
    std::memcpy(bytes + at + 1, address.bytes.data(), address.size());
    at += encodedSize(address);
  };
  if (!rendezvous.addresses.empty()) {
    const IpAddress& last = rendezvous.addresses.back();
    const std::size_t room = kChecksumAt - encodedSize(last);
    for (std::size_t i = 0; i + 1 < rendezvous.addresses.size(); ++i)
      if (at + encodedSize(rendezvous.addresses[i]) <= room) append(rendezvous.addresses[i]);
    append(last);
  }
  const auto sum = checksum(id);
  std::memcpy(bytes + kChecksumAt, sum.data(), sum.size());
  return id;
}

RendezvousId decodeId(const moecclUniqueId& id) {
  const char* bytes = id.internal;
  const auto invalid = [](const std::string& why) {
    return Error(moecclInvalidArgument, "id is not one that moecclGetUniqueId made: " + why +
                                            "; all 128 bytes must reach every rank unchanged");
  };
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    throw invalid(std::all_of(bytes, bytes + sizeof id, [](char c) { return c == 0; })
                      ? "it is all zero"
                      : "it does not begin as one");
  std::uint16_t version;
  std::memcpy(&version, bytes + kVersionAt, sizeof version);
  const auto sum = checksum(id);
  if (std::memcmp(bytes + kChecksumAt, sum.data(), sum.size()) != 0)
    throw invalid("its checksum is wrong");
  if (version != kRendezvousVersion)
    throw Error(moecclInvalidArgument,
                stringf("id was made by another version of moeccl (rendezvous %u, here %u); all "
                        "ranks need the same version",
                        version, kRendezvousVersion));

  RendezvousId rendezvous;
  std::memcpy(&rendezvous.port, bytes + kPortAt, sizeof rendezvous.port);
  std::memcpy(rendezvous.secret.data(), bytes + kSecretAt, rendezvous.secret.size());
  for (std::size_t at = kAddressesAt; at < kChecksumAt && bytes[at] != 0;) {
    IpAddress address;
    address.family = bytes[at] == 4 ? AF_INET : AF_INET6;
    if ((bytes[at] != 4 && bytes[at] != 6) || at + encodedSize(address) > kChecksumAt)
      throw invalid("its addresses are malformed");
    std::memcpy(address.bytes.data(), bytes + at + 1, address.size());
    at += encodedSize(address);
    rendezvous.addresses.push_back(address);
  }
  if (rendezvous.addresses.empty()) throw invalid("it has no address");
  return rendezvous;
}

}  // namespace moeccl

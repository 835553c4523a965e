// What the 128 bytes of a moecclUniqueId say. They are the secret of one communicator: never
// logged.
//
//   0        8       10     12         44                      120        128
//  +--------+-------+------+----------+------------------------+----------+
//  | magic  |version| port | secret   | addresses, 0-terminated| checksum |
//  +--------+-------+------+----------+------------------------+----------+
//
// An address is 4 and four bytes, or 6 and sixteen bytes. Integers are little-endian. The checksum
// is there to tell an id that was damaged on its way, say by a copy that stops at a zero byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/bootstrap/socket.h"

namespace moeccl {

using Secret = std::array<std::byte, 32>;

struct RendezvousId {
  std::uint16_t port = 0;
  Secret secret{};
  std::vector<IpAddress> addresses;
};

// Takes as many addresses as fit, and always the last one (the loopback).
moecclUniqueId encodeId(const RendezvousId& id);
// Throws Error (moecclInvalidArgument).
RendezvousId decodeId(const moecclUniqueId& id);

}  // namespace moeccl

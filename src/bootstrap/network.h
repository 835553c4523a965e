// What carries messages off this host, as far as the kernel tells.
#pragma once

#include <string>
#include <string_view>

namespace moeccl {

// Interfaces that MOECCL_SOCKET_IFNAME takes, but the loopback, and devices with RDMA:
// "eth0 1000 Mb/s MTU 1500, mlx5_0 200 Gb/sec (4X HDR)". What cannot be read is left out. `sysfs`:
// where that file system is.
std::string describeNetwork(std::string_view interfaces, const std::string& sysfs = "/sys");

}  // namespace moeccl

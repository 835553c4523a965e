// What carries messages off this host, as far as the kernel tells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/bootstrap/interfaces.h"

namespace moeccl {

// The interface that a rank listens on (of `interfaces`; `choice` is MOECCL_SOCKET_IFNAME), and
// devices with RDMA: "1000 Mb/s MTU 1500, mlx5_0 200 Gb/sec (4X HDR)". Other interfaces come and
// go, as containers do, and names differ between nodes. The loopback, and what cannot be read, is
// left out. `sysfs`: where that file system is.
std::string describeNetwork(std::string_view choice, const std::string& sysfs = "/sys",
                            const std::vector<InterfaceAddress>& interfaces = interfaceAddresses());

}  // namespace moeccl

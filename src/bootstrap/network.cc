// Reads the speed and MTU of an interface, and the rates of InfiniBand ports, from sysfs.
#include "src/bootstrap/network.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace moeccl {
namespace {

namespace fs = std::filesystem;

// The first line; "" where it cannot be read.
std::string lineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> entriesOf(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string describeNetwork(std::string_view choice, const std::string& sysfs,
                            const std::vector<InterfaceAddress>& interfaces) {
  std::string text;
  if (const InterfaceAddress* const used = interfaceToListenOn(choice, interfaces);
      used != nullptr && !used->loopback) {
    const std::string folder = sysfs + "/class/net/" + used->name + '/';
    // Negative where the interface has no speed of its own.
    if (const std::string speed = lineOf(folder + "speed"); !speed.empty() && speed[0] != '-')
      text = speed + " Mb/s";
    if (const std::string mtu = lineOf(folder + "mtu"); !mtu.empty())
      text += (text.empty() ? "MTU " : " MTU ") + mtu;
  }
  for (const std::string& device : entriesOf(sysfs + "/class/infiniband"))
    for (const std::string& port : entriesOf(sysfs + "/class/infiniband/" + device + "/ports"))
      text += (text.empty() ? "" : ", ") + device + ' ' +
              lineOf(sysfs + "/class/infiniband/" + device + "/ports/" + port + "/rate");
  return text;
}

}  // namespace moeccl

// Reads options from a command line, and prints their help.
#include "command_line.h"

#include <getopt.h>

#include <algorithm>
#include <cmath>

namespace command_line {

void wrong(const char* name, const std::string& text, const std::string& right) {
  throw std::invalid_argument(std::string("--") + name + " is \"" + text + "\"; it must be " +
                              right);
}

std::function<void(const std::string&)> real(const char* name, double& target, bool zeroToo) {
  return [=, &target](const std::string& text) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, target);
    if (error != std::errc() || stop != end || !std::isfinite(target) || target < 0 ||
        (target == 0 && !zeroToo))
      wrong(name, text, zeroToo ? "a number from 0 on" : "a number above 0");
  };
}

void parse(int count, char** arguments, const std::vector<Option>& known) {
  std::vector<option> forGetopt;
  for (const Option& each : known)
    forGetopt.push_back({each.name, each.argument ? required_argument : no_argument, nullptr, 0});
  forGetopt.push_back({nullptr, 0, nullptr, 0});

  opterr = 0;
  for (;;) {
    const int current = optind;
    int index = -1;
    // The colon at the beginning tells a missing value (':') from an unknown option ('?').
    const int found = getopt_long(count, arguments, ":", forGetopt.data(), &index);
    if (found == -1) break;
    if (found == ':')
      throw std::invalid_argument(std::string(arguments[current]) + " needs a value");
    if (found != 0)
      throw std::invalid_argument("there is no option " + std::string(arguments[current]));
    known[static_cast<std::size_t>(index)].set(optarg ? optarg : "");
  }
  if (optind < count)
    throw std::invalid_argument("\"" + std::string(arguments[optind]) + "\" is no option");
}

std::string help(const std::vector<Option>& known) {
  std::string text;
  for (const Option& each : known) {
    std::string left = std::string("  --") + each.name;
    if (each.argument) left += std::string(" ") + each.argument;
    left.resize(std::max<std::size_t>(left.size() + 1, 24), ' ');
    text += left + each.help + "\n";
  }
  return text;
}

}  // namespace command_line

// Reads the command from /proc/self/cmdline, and quotes it for a shell.
#include "src/bootstrap/origin.h"

#include <cstddef>
#include <ctime>
#include <fstream>
#include <string_view>
#include <vector>

namespace moeccl {
namespace {

constexpr std::size_t kMostCharacters = 4096;

std::string quoted(std::string_view argument) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,@%+-";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == argument.npos)
    return std::string(argument);
  std::string text = "'";
  for (const char c : argument) {
    if (c == '\'')
      text += "'\\''";
    else
      text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text + "'";
}

std::vector<std::string> arguments() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> all;
  for (std::string argument; std::getline(file, argument, '\0');) all.push_back(argument);
  return all;
}

}  // namespace

std::string commandText(std::span<const std::string> arguments) {
  std::string text;
  for (const std::string& argument : arguments) {
    if (!text.empty()) text += ' ';
    text += quoted(argument);
  }
  if (text.size() > kMostCharacters) text.replace(kMostCharacters - 3, text.npos, "...");
  return text;
}

Origin origin() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[sizeof "2026-01-31T12:00:00Z" + 8];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {date, commandText(arguments())};
}

}  // namespace moeccl

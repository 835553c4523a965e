// The options of an example in C++: `--name value`, each with a line of help.
#pragma once

#include <charconv>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace command_line {

struct Option {
  const char* name;
  const char* argument;  // nullptr: takes none
  const char* help;
  std::function<void(const std::string&)> set;
};

// Throws std::invalid_argument: the option, its value, and what would be right.
[[noreturn]] void wrong(const char* name, const std::string& text, const std::string& right);

// Calls `set` for what the command line says. Throws std::invalid_argument.
void parse(int count, char** arguments, const std::vector<Option>& known);

// A line for each option.
std::string help(const std::vector<Option>& known);

// Sets `target`, which must be as long-lived as the option, to a number from `least` to `most`.
template <typename Number>
std::function<void(const std::string&)> whole(const char* name, Number& target, Number least,
                                              Number most = std::numeric_limits<Number>::max()) {
  return [=, &target](const std::string& text) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, target);
    if (error != std::errc() || stop != end || target < least || target > most)
      wrong(name, text,
            "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  };
}

std::function<void(const std::string&)> real(const char* name, double& target, bool zeroToo);

}  // namespace command_line

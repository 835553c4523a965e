// Text for messages.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdarg>
#include <span>
#include <string>
#include <string_view>

namespace moeccl {

// As snprintf, into a string of whatever length it takes.
[[gnu::format(printf, 1, 2)]] std::string stringf(const char* format, ...);
std::string vstringf(const char* format, std::va_list arguments);

// As short as a number can be written and still be the same.
inline std::string numberText(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}
std::string numberText(std::integral auto number) { return std::to_string(number); }

// The first `most` bytes, without a part of a character (UTF-8) at the end.
std::string clipped(std::string_view text, std::size_t most);

// "rank 3", "ranks 0, 2-5, 7"; the first few runs only when there are many. `ranks` ascends and is
// not empty.
std::string rankList(std::span<const int> ranks);

}  // namespace moeccl

// Text for messages.
#pragma once

#include <cstdarg>
#include <span>
#include <string>

namespace moeccl {

// As snprintf, into a string of whatever length it takes.
[[gnu::format(printf, 1, 2)]] std::string stringf(const char* format, ...);
std::string vstringf(const char* format, std::va_list arguments);

// "rank 3", "ranks 0, 2-5, 7"; the first few runs only when there are many. `ranks` ascends and is
// not empty.
std::string rankList(std::span<const int> ranks);

}  // namespace moeccl

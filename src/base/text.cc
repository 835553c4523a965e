// Formats texts, cuts them between characters, and writes lists of ranks as ranges.
#include "src/base/text.h"

#include <cstdio>

namespace moeccl {

std::string vstringf(const char* format, std::va_list arguments) {
  std::va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (length < 0) return format;
  std::string text(static_cast<size_t>(length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, arguments);
  return text;
}

std::string stringf(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::string text = vstringf(format, arguments);
  va_end(arguments);
  return text;
}

std::string clipped(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
  };
  std::size_t end = most;
  while (end > 0 && end + 3 > most && continues(text[end])) --end;
  return std::string(text.substr(0, end));
}

std::string rankList(std::span<const int> ranks) {
  constexpr int kMaxRuns = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int runs = 0;
  for (size_t first = 0; first < ranks.size();) {
    if (runs++ == kMaxRuns) return text + stringf(" and %zu more", ranks.size() - first);
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first > 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (last > first) text += (last > first + 1 ? "-" : ", ") + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace moeccl

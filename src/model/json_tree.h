// JSON from files that nobody has vouched for: a tree of bounded size, or an error that says where
// the text stops being one.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace moeccl {

// What bounds the memory that a text can cost. Values are numbers, texts, true, false, null,
// objects and arrays; each costs some hundred bytes at most, beside its text.
struct JsonLimits {
  std::size_t bytes;
  std::size_t depth;
  std::size_t values;
  std::size_t textBytes;  // of one text or key
};

// Strict JSON in UTF-8. Throws InvalidArgument for anything else, for numbers that no double holds,
// for an object that has a key twice, and beyond the limits; the text says where.
nlohmann::json parseJson(std::string_view text, const JsonLimits& limits);

}  // namespace moeccl

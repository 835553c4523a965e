// Reads data from a JSON tree; whatever is not as it must be is an InvalidArgument that names its
// place.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moeccl {

// A value of the tree, and where it is. Refers to the one that it was got from, which must outlive
// it.
class JsonReader {
 public:
  explicit JsonReader(const nlohmann::json& root) : value_(root) {}

  // A member that must be there, or (has) may be; of an object.
  JsonReader operator[](const char* key) const;
  bool has(const char* key) const;
  // What `read` makes of each value of an array, which has between `least` and `most`.
  template <typename Read>
  auto list(std::size_t least, std::size_t most, Read read) const {
    std::vector<decltype(read(*this))> all;
    for (std::size_t i = 0, count = size(least, most); i < count; ++i)
      all.push_back(read(JsonReader(value_[i], this, nullptr, i)));
    return all;
  }

  double number(double least, double most) const;
  // An amount of things that come whole: 0, or from 1 to `most`.
  double amount(double most) const;
  // A whole number.
  int integer(int least, int most) const;
  const std::string& text() const;

  // "curves[3].samples[2].seconds"
  std::string place() const;
  [[noreturn]] void fail(const std::string& what) const;  // "PLACE WHAT"

 private:
  JsonReader(const nlohmann::json& value, const JsonReader* parent, const char* key,
             std::size_t index)
      : value_(value), parent_(parent), key_(key), index_(index) {}

  std::size_t size(std::size_t least, std::size_t most) const;
  // What is there, short: "-1", "\"abc\"", "an array".
  std::string shown() const;

  const nlohmann::json& value_;
  const JsonReader* parent_ = nullptr;
  const char* key_ = nullptr;
  std::size_t index_ = 0;
};

}  // namespace moeccl

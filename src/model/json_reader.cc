// Reads numbers, texts and arrays out of a JSON tree within given bounds. Errors name the place,
// and show what is there.
#include "src/model/json_reader.h"

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {

using nlohmann::json;

JsonReader JsonReader::operator[](const char* key) const {
  if (!has(key)) fail(stringf("has no \"%s\"", key));
  return {*value_.find(key), this, key, 0};
}

bool JsonReader::has(const char* key) const {
  if (!value_.is_object()) fail("is " + shown() + "; it must be an object");
  return value_.contains(key);
}

std::size_t JsonReader::size(std::size_t least, std::size_t most) const {
  if (!value_.is_array()) fail("is " + shown() + "; it must be an array");
  if (value_.size() < least || value_.size() > most)
    fail(stringf("has %zu values; it must have between %zu and %zu", value_.size(), least, most));
  return value_.size();
}

double JsonReader::number(double least, double most) const {
  const double value = value_.is_number() ? value_.get<double>() : least - 1;
  if (!value_.is_number() || !(value >= least && value <= most))
    fail("is " + shown() + stringf("; it must be a number between %g and %g", least, most));
  return value;
}

double JsonReader::amount(double most) const {
  const double value = number(0, most);
  if (value > 0 && value < 1)
    fail("is " + shown() + stringf("; it must be 0, or a number between 1 and %g", most));
  return value;
}

int JsonReader::integer(int least, int most) const {
  const double value = value_.is_number() ? value_.get<double>() : 0;
  if (!value_.is_number_integer() || !(value >= least && value <= most))
    fail("is " + shown() + stringf("; it must be a whole number between %d and %d", least, most));
  return static_cast<int>(value);
}

const std::string& JsonReader::text() const {
  if (!value_.is_string()) fail("is " + shown() + "; it must be a text");
  return value_.get_ref<const std::string&>();
}

std::string JsonReader::place() const {
  if (!parent_) return "";
  const std::string before = parent_->place();
  if (!key_) return before + stringf("[%zu]", index_);
  return before + (before.empty() ? "" : ".") + key_;
}

void JsonReader::fail(const std::string& what) const {
  const std::string where = place();
  throw Error(moecclInvalidArgument, (where.empty() ? "the profile" : where) + " " + what);
}

std::string JsonReader::shown() const {
  constexpr std::size_t kMost = 40;
  if (value_.is_object()) return "an object";
  if (value_.is_array()) return "an array";
  const std::string text = value_.dump();
  return text.size() <= kMost ? text : "a text of " + std::to_string(text.size()) + " bytes";
}

}  // namespace moeccl

// Builds a JSON tree from the events of nlohmann's parser, and stops at the first value that passes
// a limit or key that comes twice.
#include "src/model/json_tree.h"

#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

using nlohmann::json;

std::string shortened(const std::string& key) {
  constexpr std::size_t kMost = 64;
  return key.size() <= kMost ? key : key.substr(0, kMost) + "...";
}

// Builds the tree from the parser's events. What is wrong is thrown through the parser.
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override {
    checkLength(value, "a text");
    return put(std::move(value));
  }
  bool binary(binary_t&) override { return false; }  // JSON has none

  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    checkLength(key, "a key");
    Open& object = open_.back();
    const auto [member, isNew] = object.value->get_ref<json::object_t&>().try_emplace(key);
    if (!isNew) fail("the key \"" + shortened(key) + "\" comes twice in an object");
    object.key = shortened(key);
    object.member = &member->second;
    return true;
  }

  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...", and may
  // repeat as much of the text as was read of one value.
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr std::size_t kMost = 300;
    std::string_view text = error.what();
    for (const std::string_view prefix : {"] ", "parse error at ", "parse error: "})
      if (const auto at = text.find(prefix); at != text.npos && at < kMost)
        text.remove_prefix(at + prefix.size());
    throw Error(moecclInvalidArgument, "this is no JSON: " + std::string(text.substr(0, kMost)) +
                                           (text.size() > kMost ? "..." : ""));
  }

 private:
  // An object or array that has begun and not ended, and the member that is being read.
  struct Open {
    json* value;
    std::string key;
    json* member;
  };

  [[noreturn]] void fail(const std::string& what) const {
    std::string place;
    for (const Open& open : open_) {
      if (open.value->is_array())  // what is in the innermost is not there yet
        place += stringf("[%zu]", open.value->size() - (&open != &open_.back()));
      else if (!open.key.empty())
        place += (place.empty() ? "" : ".") + open.key;
    }
    throw Error(moecclInvalidArgument, what + (place.empty() ? "" : ", at or after " + place));
  }

  void checkLength(const string_t& text, const char* what) const {
    if (text.size() > limits_.textBytes)
      fail(stringf("%s is %zu bytes long; at most %zu are allowed", what, text.size(),
                   limits_.textBytes));
  }

  json& add(json value) {
    if (++values_ > limits_.values) fail(stringf("there are more than %zu values", limits_.values));
    json* place = &root_;
    if (!open_.empty() && open_.back().value->is_object())
      place = open_.back().member;
    else if (!open_.empty())
      place = &open_.back().value->get_ref<json::array_t&>().emplace_back();
    *place = std::move(value);
    return *place;
  }

  bool put(json value) {
    add(std::move(value));
    return true;
  }

  // A pointer to what is open stays good: its array grows only after it has ended.
  bool open(json value) {
    if (open_.size() == limits_.depth)
      fail(stringf("arrays and objects are nested more than %zu deep", limits_.depth));
    open_.push_back({&add(std::move(value)), {}, nullptr});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  json root_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
};

}  // namespace

json parseJson(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw Error(moecclInvalidArgument,
                stringf("there are %zu bytes; at most %zu are allowed", text.size(), limits.bytes));
  // The parser takes it for the end.
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    throw Error(moecclInvalidArgument, stringf("this is no JSON: byte %zu is 0", zero));
  TreeBuilder builder(limits);
  json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace moeccl

// What programs that measure leave for tests/gpu/report.py.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

namespace moeccl::gpu {

// A name, and a number or a text without quotes.
struct Field {
  template <typename Number>
  requires std::is_arithmetic_v<Number> Field(const char* what, Number number)
      : name(what), value(std::to_string(number)) {}
  Field(const char* what, const std::string& text) : name(what), value('"' + text + '"') {}

  const char* name;
  std::string value;
};

// Adds a line, an object of JSON, to the file that $MEASUREMENTS names, if it names one.
inline void record(const std::vector<Field>& fields) {
  const char* const path = std::getenv("MEASUREMENTS");
  if (path == nullptr) return;
  std::string line;
  for (const Field& field : fields)
    line += (line.empty() ? "{\"" : ", \"") + std::string(field.name) + "\": " + field.value;
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s}\n", line.c_str());
  std::fclose(file);
}

}  // namespace moeccl::gpu

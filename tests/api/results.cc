// Compares results and texts.
#include "tests/api/results.h"

#include <stdexcept>

namespace moeccl::test {

void check(moecclResult_t result, moecclComm_t comm) {
  if (result != moecclSuccess)
    throw std::runtime_error(std::string(moecclGetErrorString(result)) + ": " +
                             moecclGetLastError(comm));
}

void checkError(moecclResult_t result, moecclResult_t expected, moecclComm_t comm,
                const std::vector<std::string>& parts) {
  const std::string text = moecclGetLastError(comm);
  if (result != expected)
    throw std::runtime_error("result " + std::to_string(result) + " instead of " +
                             std::to_string(expected) + ": " + text);
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      throw std::runtime_error("\"" + text + "\" does not contain \"" + part + "\"");
}

void checkThat(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error(text);
}

}  // namespace moeccl::test

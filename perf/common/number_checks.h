// Checks of the options' numbers whose errors are short: CLI11's own spell out the largest double.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace moeccl::perf {

inline CLI::Validator numberCheck(const char* description, const char* what,
                                  bool (*holds)(double)) {
  const auto check = [what, holds](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && std::isfinite(value) && holds(value)) return {};
    return text + " is no number " + what;
  };
  return {check, description};
}

inline const CLI::Validator kPositive =
    numberCheck("POSITIVE", "above 0", [](double value) { return value > 0; });
inline const CLI::Validator kNotNegative =
    numberCheck("NONNEGATIVE", "from 0 on", [](double value) { return value >= 0; });

}  // namespace moeccl::perf

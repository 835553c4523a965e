#include "algorithms/choice.h"

namespace moeccl {
namespace {

constexpr NamedParameter kParameters[] = {{"window", &Parameters::window},
                                          {"radix", &Parameters::radix},
                                          {"leaders", &Parameters::leaders},
                                          {"chunks", &Parameters::chunks}};

}  // namespace

std::span<const NamedParameter> namedParameters() { return kParameters; }

std::string textOf(const AlgorithmChoice& choice) {
  if (choice.algorithm == nullptr) return "auto";
  std::string text(choice.algorithm->name);
  char separator = ':';
  for (const NamedParameter& parameter : kParameters) {
    const int value = choice.parameters.*parameter.value;
    if (value == Parameters{}.*parameter.value) continue;
    text += separator;
    text += std::string(parameter.name) + "=" + std::to_string(value);
    separator = ',';
  }
  return text;
}

}  // namespace moeccl

// Reads choices such as "bruck:radix=4" and writes them again. Errors name what there is instead.
#include "algorithms/choice.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace moeccl {
namespace {

// No rank has more peers.
constexpr int kMostPeers = 1 << 16;

constexpr NamedParameter kParameters[] = {{"window", &Parameters::window, 0, kMostPeers},
                                          {"radix", &Parameters::radix, 2, kMostPeers},
                                          {"leaders", &Parameters::leaders, 0, kMostPeers},
                                          {"chunks", &Parameters::chunks, 1, kMaxChunks}};

constexpr std::size_t kCharactersShown = 120;

std::string algorithmNames(Collective collective) {
  std::string names = "auto";
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.collective == collective) (names += ", ") += algorithm.name;
  return names;
}

// "radix=4"
void readParameter(std::string_view entry, Parameters* parameters) {
  const std::size_t equals = std::min(entry.find('='), entry.size());
  const std::string_view name = trimmed(entry.substr(0, equals));
  const std::span<const NamedParameter> all = namedParameters();
  const auto known = std::ranges::find(all, name, &NamedParameter::name);
  if (known == all.end()) {
    std::string names;
    for (const NamedParameter& each : all) (names += names.empty() ? "" : ", ") += each.name;
    throw std::invalid_argument("there is no parameter " + quoted(name) + "; there are: " + names);
  }
  const std::string_view number = trimmed(entry.substr(std::min(equals + 1, entry.size())));
  const char* const end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, parameters->*known->value);
  if (error != std::errc() || rest != end)
    throw std::invalid_argument(quoted(entry) + ": " + std::string(name) +
                                " must be a whole number");
  const int value = parameters->*known->value;
  if (value < known->least || value > known->most)
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                                "; it must be from " + std::to_string(known->least) + " to " +
                                std::to_string(known->most));
}

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

Collective readCollective(std::string_view name) {
  if (const auto known = collectiveNamed(trimmed(name))) return *known;
  std::string names;
  for (int i = 0; i < kCollectives; ++i)
    (names += i > 0 ? ", " : "") += nameOf(static_cast<Collective>(i));
  throw std::invalid_argument("there is no collective " + quoted(trimmed(name)) +
                              "; there are: " + names);
}

AlgorithmChoice readChoice(Collective collective, std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = trimmed(text.substr(0, colon));
  AlgorithmChoice choice{findAlgorithm(collective, name)};
  if (choice.algorithm == nullptr && name != "auto")
    throw std::invalid_argument(std::string(nameOf(collective)) + " has no algorithm " +
                                quoted(name) + "; it has: " + algorithmNames(collective));
  for (std::size_t begin = colon + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    readParameter(trimmed(text.substr(begin, end - begin)), &choice.parameters);
    begin = end + 1;
  }
  return choice;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string quoted(std::string_view text) {
  const bool cut = text.size() > kCharactersShown;
  return '"' + std::string(text.substr(0, kCharactersShown)) + (cut ? "...\"" : "\"");
}

}  // namespace moeccl

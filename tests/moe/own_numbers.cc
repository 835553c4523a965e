#include "tests/moe/own_numbers.h"

#include <algorithm>

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

constexpr double kWeights[kOwnChoices] = {0.5, 0.25};

double tokenAt(int batch, std::int64_t at) {
  return static_cast<double>((at * 7 + batch * 3) % 5 - 2) / 2;
}
double gradientAt(int batch, std::int64_t at) {
  return static_cast<double>((at * 5 + batch) % 3 - 1);
}
// The second choice of every third token is not made.
bool isMade(std::int64_t token, std::int64_t choice) { return choice == 0 || token % 3 != 0; }

}  // namespace

OwnNumbers::OwnNumbers(const Problem& problem, int batch) {
  const std::int64_t width = problem.embedding;
  for (std::int64_t at = 0; at < problem.tokens * width; ++at) {
    tokens.push_back(tokenAt(batch, at));
    gradients.push_back(gradientAt(batch, at));
  }
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    double whole = 0, product = 0;
    for (std::int64_t m = 0; m < width; ++m)
      product += tokens[token * width + m] * gradients[token * width + m];
    for (std::int64_t choice = 0; choice < kOwnChoices; ++choice) {
      const bool made = isMade(token, choice);
      experts.push_back(made ? static_cast<std::int32_t>((token + batch + choice) % problem.experts)
                             : -1);
      weights.push_back(kWeights[choice]);
      whole += made ? 2 * kWeights[choice] : 0;
      weightGradients.push_back(made ? 2 * product : 0);
    }
    for (std::int64_t m = 0; m < width; ++m) {
      output.push_back(whole * tokens[token * width + m]);
      inputGradient.push_back(whole * gradients[token * width + m]);
    }
  }
}

moecclMoeConfig_t ownConfig(const Problem& problem) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = problem.tokens;
  config.embedding = problem.embedding;
  config.hidden = problem.grid.nEsp;
  config.experts = problem.experts;
  config.topK = kOwnChoices;
  config.capacityFactor = problem.dropless ? 0 : static_cast<double>(problem.experts);
  config.capacityGroups = problem.capacityGroups;
  config.dropless = problem.dropless;
  config.tokenRouting = problem.tokenRouting;
  config.datatype = problem.datatype;
  config.training = 1;
  return config;
}

void doubleRows(const Problem& problem, const moecclMoeRows_t& rows, const void* from,
                bool counts) {
  const auto* const begin = static_cast<const std::byte*>(from);
  const std::size_t bytes =
      encode(problem.datatype, {0}).size() *
      static_cast<std::size_t>(rows.begins[problem.experts / problem.grid.nEp] * problem.embedding);
  std::vector<double> values = decode(problem.datatype, {begin, begin + bytes});
  for (double& value : values) value *= counts ? 2 : 0;
  std::ranges::copy(encode(problem.datatype, values), static_cast<std::byte*>(rows.results));
}

}  // namespace moeccl::test

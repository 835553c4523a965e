// Checks a gate's config field by field, and computes sizes that follow from it. Errors name the
// field, its value and what it must be.
#include <cmath>
#include <limits>

#include "kernels/gates/gate.h"
#include "kernels/gates/rule.h"
#include "src/base/text.h"

namespace moeccl::gates {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr std::int64_t kLargestInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kLargestSize = std::numeric_limits<std::int64_t>::max();

template <typename Value>
std::string wrong(const char* field, Value value, const std::string& right) {
  return std::string(field) + " is " + numberText(value) + "; it must be " + right;
}

std::string outside(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return "";
  return wrong(field, value,
               most == kLargestSize
                   ? "at least " + std::to_string(least)
                   : "from " + std::to_string(least) + " to " + std::to_string(most));
}

std::string negative(const char* field, double value) {
  if (value >= 0 && value <= kLargest) return "";
  return wrong(field, value, "a finite number, 0 or more");
}

std::string shapeProblem(const Config& config) {
  for (const std::string& text : {outside("batchTokens", config.batchTokens, 0, kLargestSize),
                                  outside("embedding", config.embedding, 1, kLargestInt),
                                  outside("experts", config.experts, 1, kLargestInt),
                                  outside("capacityTokens", config.capacityTokens, 0, kLargestSize),
                                  outside("capacitySlots", config.capacitySlots, 0, kLargestSize)})
    if (!text.empty()) return text;
  return "";
}

std::string sigmoidProblem(const Config& config) {
  std::string text = outside("expertGroups", config.expertGroups, 1, config.experts);
  if (text.empty() && config.experts % config.expertGroups != 0)
    text = wrong("expertGroups", config.expertGroups,
                 "a divisor of the number of experts, " + std::to_string(config.experts));
  if (text.empty() && (config.topGroups < 1 || config.topGroups > config.expertGroups))
    text = wrong("topGroups", config.topGroups,
                 "from 1 to expertGroups, " + std::to_string(config.expertGroups));
  if (!text.empty()) return text;
  const std::int64_t offered =
      static_cast<std::int64_t>(config.topGroups) * (config.experts / config.expertGroups);
  if (config.choices > offered)
    return wrong("choices", config.choices,
                 "at most the number of experts in topGroups groups, " + std::to_string(offered));
  if (!(config.routingScale > 0 && config.routingScale <= kLargest))
    return wrong("routingScale", config.routingScale, "a finite number above 0");
  return outside("sequenceTokens", config.sequenceTokens, 0, kLargestSize);
}

}  // namespace

std::string problem(const Config& config) {
  std::string text = shapeProblem(config);
  if (!text.empty()) return text;
  if (config.kind != Kind::expertChoice)
    text = outside("choices", config.choices, 1, config.experts);
  if (!text.empty()) return text;
  switch (config.kind) {
    case Kind::softmax:
      if (config.jitter >= 0 && config.jitter <= 1) return "";
      return wrong("jitter", config.jitter, "from 0 to 1");
    case Kind::noisy:
      text = negative("importanceWeight", config.importanceWeight);
      return text.empty() ? negative("loadWeight", config.loadWeight) : text;
    case Kind::gshard:
      return config.choices == 2 ? "" : wrong("choices", config.choices, "2 for the gate gshard");
    case Kind::expertChoice:
      return "";
    case Kind::sigmoid:
      return sigmoidProblem(config);
  }
  return wrong("kind", static_cast<int>(config.kind), "a gate's");
}

std::int32_t width(const Config& config) {
  return config.kind == Kind::expertChoice ? config.experts : config.choices;
}

std::int64_t logitsPerToken(const Config& config) {
  return (config.kind == Kind::noisy ? 2 : 1) * static_cast<std::int64_t>(config.experts);
}

std::int64_t sumsSize(const Config& config) { return (2 + 2 * sections(config)) * config.experts; }

}  // namespace moeccl::gates

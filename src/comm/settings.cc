// Reads the config and then the variables, which count more, and compares settings as lines of
// text.
#include "src/comm/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "algorithms/choice.h"
#include "src/base/error.h"
#include "src/base/structs.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclConfig_t> kConfig = {
    "config", "MOECCL_CONFIG_INITIALIZER", MOECCL_CONFIG_MAGIC,
    MOECCL_END_OF(moecclConfig_t, nodeId), MOECCL_END_OF(moecclConfig_t, idleContext)};

[[noreturn]] void invalid(const std::string& text) { throw Error(moecclInvalidArgument, text); }

std::int64_t normalTimeout(std::int64_t milliseconds, std::int64_t standard) {
  if (milliseconds == 0) return standard;
  // Three weeks and a half are for ever too; what waits for less need not fear an overflow.
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  return milliseconds < 0 || milliseconds > kLongest ? kForever : milliseconds;
}

void applyConfig(const moecclConfig_t& config, Settings* settings) {
  settings->timeoutMs = normalTimeout(config.timeoutMs, kDefaultTimeoutMs);
  settings->algorithms = {};
  if (config.algorithms != nullptr)
    parseAlgorithms(config.algorithms, "config.algorithms", &settings->algorithms);
}

void readMilliseconds(const Environment& environment, const char* name, std::int64_t standard,
                      std::int64_t* into) {
  const char* value = valueOf(environment, name);
  if (value == nullptr) return;
  std::int64_t milliseconds = 0;
  const char* end = value + std::strlen(value);
  const auto [rest, error] = std::from_chars(value, end, milliseconds);
  if (error != std::errc() || rest != end)
    invalid(
        stringf("%s is \"%s\"; it must be a whole number of milliseconds "
                "(0: %lld, negative: for ever)",
                name, value, static_cast<long long>(standard)));
  *into = normalTimeout(milliseconds, standard);
}

// The variables that a split's settings obey too.
void applyEnvironment(const Environment& environment, Settings* settings) {
  readMilliseconds(environment, "MOECCL_TIMEOUT", kDefaultTimeoutMs, &settings->timeoutMs);
  if (const char* value = valueOf(environment, "MOECCL_ALGO"))
    parseAlgorithms(value, "MOECCL_ALGO", &settings->algorithms);
}

TransportChoice transportNamed(std::string_view name) {
  if (name == "auto") return TransportChoice::automatic;
  if (name == "loopback") return TransportChoice::loopback;
  if (name == "tcp") return TransportChoice::tcp;
  if (name == "ucx") return TransportChoice::ucx;
  invalid("MOECCL_TRANSPORT is " + quoted(name) + "; it must be auto, loopback, tcp or ucx");
}

constexpr const char* nameOfTransport(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::automatic:
      return "auto";
    case TransportChoice::loopback:
      return "loopback";
    case TransportChoice::tcp:
      return "tcp";
    case TransportChoice::ucx:
      return "ucx";
  }
  return "?";
}

std::int64_t numberIn(const Environment& environment, const char* name, std::int64_t least,
                      std::int64_t most, std::int64_t otherwise) {
  const char* value = valueOf(environment, name);
  if (value == nullptr) return otherwise;
  std::int64_t number = 0;
  const char* end = value + std::strlen(value);
  const auto [rest, error] = std::from_chars(value, end, number);
  if (error != std::errc() || rest != end || number < least || number > most)
    invalid(stringf("%s is \"%s\"; it must be a whole number from %lld to %lld", name, value,
                    static_cast<long long>(least), static_cast<long long>(most)));
  return number;
}

std::vector<std::string_view> linesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size(); begin += lines.back().size() + 1)
    lines.push_back(text.substr(begin, text.find('\n', begin) - begin));
  return lines;
}

}  // namespace

std::string socketInterfaces(const Environment& environment) {
  const char* const value = valueOf(environment, "MOECCL_SOCKET_IFNAME");
  return value == nullptr ? "" : value;
}

Settings readSettings(const moecclConfig_t* config, const Environment& environment) {
  Settings settings;
  if (config != nullptr) {
    const moecclConfig_t known = readStruct(kConfig, config);
    if (known.progressThread != 0 && known.progressThread != 1)
      invalid(stringf("config.progressThread is %d; it must be 0 or 1", known.progressThread));
    settings.progressThread = known.progressThread == 1;
    if (known.memory != moecclMemoryHost && known.memory != moecclMemoryCuda)
      invalid(stringf("config.memory is %d; it must be moecclMemoryHost or moecclMemoryCuda",
                      static_cast<int>(known.memory)));
    settings.memory = known.memory;
    settings.failureDetectionMs =
        normalTimeout(known.failureDetectionMs, kDefaultFailureDetectionMs);
    settings.idle = known.idle;
    settings.idleContext = known.idleContext;
    if (known.nodeId != nullptr) settings.nodeId = known.nodeId;
    applyConfig(known, &settings);
  }
  applyEnvironment(environment, &settings);
  readMilliseconds(environment, "MOECCL_FAILURE_DETECTION", kDefaultFailureDetectionMs,
                   &settings.failureDetectionMs);
  if (const char* value = valueOf(environment, "MOECCL_NODE_ID")) settings.nodeId = value;
  settings.interfaces = socketInterfaces(environment);
  if (const char* value = valueOf(environment, "MOECCL_TRACE")) settings.trace = value;
  if (const char* value = valueOf(environment, "MOECCL_PROFILE")) settings.profile = value;
  settings.probe = numberIn(environment, "MOECCL_PROBE", 0, 1, 1) == 1;
  if (const char* value = valueOf(environment, "MOECCL_TRANSPORT"))
    settings.transport = transportNamed(value);
  settings.socketsPerPeer =
      static_cast<int>(numberIn(environment, "MOECCL_SOCKETS_PER_PEER", 1, kMostTcpConnections, 1));
  settings.registers = numberIn(environment, "MOECCL_REGISTER", 0, 1, 1) == 1;
  settings.unexpectedBytes = static_cast<std::size_t>(numberIn(
      environment, "MOECCL_UNEXPECTED_BYTES", 0, std::int64_t{1} << 40, std::int64_t{kTcpMemory}));
  return settings;
}

std::int64_t timeoutOf(std::int64_t milliseconds) {
  return normalTimeout(milliseconds, kDefaultTimeoutMs);
}

Settings readSplitSettings(const Settings& parent, const moecclConfig_t* config,
                           const Environment& environment) {
  Settings settings = parent;
  if (config == nullptr) return settings;
  applyConfig(readStruct(kConfig, config), &settings);
  applyEnvironment(environment, &settings);
  return settings;
}

void parseAlgorithms(std::string_view text, std::string_view source,
                     std::array<AlgorithmChoice, kCollectives>* into) {
  const std::string where = std::string(source) + " = " + quoted(text) + ": ";
  std::array<bool, kCollectives> seen{};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    const std::string_view entry = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == entry.npos)
      invalid(where + quoted(entry) +
              " is not of the form collective=algorithm, as in \"alltoall=linear;allgather=ring\"");
    try {
      const Collective collective = readCollective(entry.substr(0, equals));
      const auto index = static_cast<std::size_t>(collective);
      if (seen[index])
        throw std::invalid_argument(std::string(nameOf(collective)) + " is there twice");
      seen[index] = true;
      (*into)[index] = readChoice(collective, entry.substr(equals + 1));
    } catch (const std::invalid_argument& error) {
      invalid(where + error.what());
    }
  }
}

std::string comparable(const Settings& settings, int ranks) {
  std::string text = stringf("nRanks=%d\n", ranks);
  text += "the version of moeccl=" + versionText(MOECCL_VERSION) + '\n';
  text += std::string("MOECCL_TRANSPORT=") + nameOfTransport(settings.transport) + '\n';
  text += std::string("config.memory=") +
          (settings.memory == moecclMemoryCuda ? "moecclMemoryCuda" : "moecclMemoryHost") + '\n';
  // Paths may differ from node to node; the profiles themselves are compared when they are read.
  text += std::string("MOECCL_PROFILE=") + (settings.profile.empty() ? "nothing" : "a path") + '\n';
  text += std::string("MOECCL_PROBE=") + (settings.probe ? "1" : "0") + '\n';
  text += "timeoutMs=" +
          (settings.timeoutMs == kForever ? "for ever" : std::to_string(settings.timeoutMs)) + '\n';
  for (int i = 0; i < kCollectives; ++i) {
    text += "the algorithm of " + std::string(nameOf(static_cast<Collective>(i))) + '=' +
            textOf(settings.algorithms[static_cast<std::size_t>(i)]) + '\n';
  }
  return text;
}

std::string disagreement(std::span<const std::string> byRank) {
  const auto agreesWithFirst = [&](const std::string& text) { return text == byRank[0]; };
  if (std::all_of(byRank.begin(), byRank.end(), agreesWithFirst)) return "";
  std::vector<std::vector<std::string_view>> lines;
  for (const std::string& text : byRank) lines.push_back(linesOf(text));
  for (std::size_t at = 0;; ++at) {
    // The ranks by what they have on this line; versions of the library may have more lines.
    std::vector<std::pair<std::string_view, std::vector<int>>> groups;
    std::string_view name;
    for (std::size_t rank = 0; rank < lines.size(); ++rank) {
      const std::string_view line = at < lines[rank].size() ? lines[rank][at] : "";
      if (name.empty()) name = line.substr(0, line.find('='));
      auto group = groups.begin();
      while (group != groups.end() && group->first != line) ++group;
      if (group == groups.end()) group = groups.insert(group, {line, {}});
      group->second.push_back(static_cast<int>(rank));
    }
    if (groups.size() == 1) continue;
    std::string text = "ranks disagree on " + std::string(name) + ": ";
    constexpr std::size_t kGroupsShown = 4;
    for (std::size_t i = 0; i < groups.size() && i < kGroupsShown; ++i) {
      const auto& [line, ranks] = groups[i];
      text += (i > 0 ? ", " : "") + rankList(ranks) + (ranks.size() == 1 ? " has " : " have ") +
              (line.empty() ? "nothing" : std::string(line.substr(line.find('=') + 1)));
    }
    if (groups.size() > kGroupsShown) text += ", the others something else again";
    return text;
  }
}

}  // namespace moeccl

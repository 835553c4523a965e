// Reads layers, nodes, grids and sizes from texts, and adds the options that several tools have.
// What is wrong is told with what would be right.
#include "perf/common/options.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>

namespace moeccl::perf {
namespace {

struct Count {
  std::string_view name;
  std::int64_t moecclMoeConfig_t::*member;
  std::int64_t least;
};
constexpr std::array kCounts = {
    Count{"tokens", &moecclMoeConfig_t::tokens, 0},
    Count{"embedding", &moecclMoeConfig_t::embedding, 1},
    Count{"hidden", &moecclMoeConfig_t::hidden, 1},
    Count{"experts", &moecclMoeConfig_t::experts, 1},
    Count{"top-k", &moecclMoeConfig_t::topK, 1},
};

constexpr std::array kPasses = {std::pair{"forward", moecclPassForward},
                                std::pair{"backward", moecclPassBackward},
                                std::pair{"both", moecclPassBoth}};

// Reads all of `text`, and no more.
template <typename Number>
bool readAll(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

[[noreturn]] void wrongLayer(const std::string& what) {
  throw CLI::ValidationError(
      "--layer", what +
                     "; give tokens, embedding, hidden, experts, top-k and capacity-factor, and "
                     "capacity-groups where they are not the MP group's ranks");
}

// The NAME=VALUE of --layer, each of which is taken once.
class LayerSettings {
 public:
  explicit LayerSettings(const std::vector<std::string>& settings) {
    for (const std::string& setting : settings) {
      const std::size_t equals = setting.find('=');
      if (equals == std::string::npos) wrongLayer("\"" + setting + "\" is not NAME=VALUE");
      if (!given_.emplace(setting.substr(0, equals), setting.substr(equals + 1)).second)
        wrongLayer(setting.substr(0, equals) + " is given twice");
    }
  }

  template <typename Number>
  Number take(std::string_view name, Number least) {
    const auto found = given_.extract(std::string(name));
    if (found.empty()) wrongLayer("there is no " + std::string(name));
    const std::string text = found.key() + "=" + found.mapped();
    Number value{};
    if (!readAll(found.mapped(), value) || !std::isfinite(static_cast<double>(value)))
      wrongLayer(text + " is no number" + (std::is_integral_v<Number> ? " of them" : ""));
    if (value < least) wrongLayer(text + " is below " + std::to_string(std::int64_t(least)));
    return value;
  }
  bool has(std::string_view name) const { return given_.contains(std::string(name)); }
  void requireAllTaken() const {
    if (!given_.empty()) wrongLayer("there is no \"" + given_.begin()->first + "\"");
  }

 private:
  std::map<std::string, std::string> given_;
};

moecclMoeConfig_t readLayer(const std::vector<std::string>& texts) {
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  LayerSettings settings(texts);
  for (const auto& [name, member, least] : kCounts) layer.*member = settings.take(name, least);
  layer.capacityFactor = settings.take("capacity-factor", 0.0);
  layer.dropless = layer.capacityFactor == 0 ? 1 : 0;
  if (settings.has("capacity-groups"))
    layer.capacityGroups = settings.take("capacity-groups", std::int64_t{0});
  settings.requireAllTaken();
  return layer;
}

std::vector<int> readNodes(const std::string& text, int mostRanks) {
  std::vector<int> ranksPerNode;
  std::int64_t total = 0;
  for (std::string_view rest = text; rest.data() != nullptr;) {
    const std::size_t comma = rest.find(',');
    const std::string_view some = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::size_t times = some.find('x');
    int nodes = 1, ranks = 0;
    if ((times != std::string_view::npos && !readAll(some.substr(0, times), nodes)) ||
        !readAll(times == std::string_view::npos ? some : some.substr(times + 1), ranks) ||
        nodes < 1 || ranks < 1)
      throw CLI::ValidationError("--nodes", "\"" + text +
                                                "\" are no nodes; give nodes and their ranks, as "
                                                "in 2x4, or the ranks of each node, as in 4,4,3");
    total += std::int64_t{nodes} * ranks;
    if (total > mostRanks)
      throw CLI::ValidationError(
          "--nodes", "\"" + text + "\" are more than " + std::to_string(mostRanks) + " ranks");
    ranksPerNode.insert(ranksPerNode.end(), static_cast<std::size_t>(nodes), ranks);
  }
  return ranksPerNode;
}

}  // namespace

CLI::Validator numberCheck(const char* description, const char* what, bool (*holds)(double)) {
  const auto check = [what, holds](const std::string& text) -> std::string {
    double value = 0;
    if (readAll(text, value) && std::isfinite(value) && holds(value)) return {};
    return text + " is no number " + what;
  };
  return {check, description};
}

const CLI::Validator kPositive =
    numberCheck("POSITIVE", "above 0", [](double value) { return value > 0; });
const CLI::Validator kNotNegative =
    numberCheck("NONNEGATIVE", "from 0 on", [](double value) { return value >= 0; });
const CLI::Validator kSize(
    [](std::string& text) -> std::string {
      // CLI11 would take "-8" for 2^64 - 8.
      if (text.starts_with('-')) return "a size is 0 or more, not " + text;
      return CLI::AsSizeValue(false)(text);
    },
    "SIZE");

CLI::Option* addNodesOption(CLI::App& app, std::vector<int>& ranksPerNode, int mostRanks) {
  return app
      .add_option_function<std::string>(
          "--nodes",
          [&ranksPerNode, mostRanks](const std::string& text) {
            ranksPerNode = readNodes(text, mostRanks);
          },
          "2x4: nodes and the ranks of each; or, uneven, the ranks of each node, as in 4,4,3")
      ->type_name("NODESxRANKS");
}

moecclGridShape_t readGrid(const std::string& option, const std::string& text) {
  moecclGridShape_t grid{0, 0, 0, moecclOrderEspEp};
  int end = 0;
  const int read = std::sscanf(text.c_str(), "%dx%dx%d%n", &grid.nMp, &grid.nEp, &grid.nEsp, &end);
  const std::string rest = text.substr(static_cast<std::size_t>(end));
  if (read != 3 || grid.nMp < 1 || grid.nEp < 1 || grid.nEsp < 1 || (rest != "" && rest != ":ep"))
    throw CLI::ValidationError(
        option, "\"" + text +
                    "\" is none; give the ranks of an MP, an EP and an ESP group, as in 2x4x2, and "
                    "append :ep where EP groups are consecutive ranks");
  if (!rest.empty()) grid.order = moecclOrderEpEsp;
  return grid;
}

CLI::Option* addGridOption(CLI::App& app, moecclGridShape_t& grid, const std::string& which) {
  return app
      .add_option_function<std::string>(
          "--grid", [&grid](const std::string& text) { grid = readGrid("--grid", text); },
          "ranks per group, as in 2x4x2 or, where EP groups are consecutive, 2x4x2:ep;\n" + which)
      ->type_name("MPxEPxESP");
}

CLI::Option* addLayerOption(CLI::App& app, moecclMoeConfig_t& layer) {
  return app
      .add_option_function<std::vector<std::string>>(
          "--layer",
          [&layer](const std::vector<std::string>& settings) { layer = readLayer(settings); },
          "tokens=4096,embedding=1024,hidden=4096,experts=64,top-k=2,capacity-factor=1.2: as "
          "in\nmoecclMoeConfig_t; tokens are those of one MP group; a factor of 0: dropless")
      ->type_name("NAME=VALUE,...")
      ->delimiter(',')
      ->allow_extra_args(false);
}

CLI::Option* addPassOption(CLI::App& app, moecclPass_t& pass,
                           const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    (text += i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") += names[i];
  return app
      .add_option_function<std::string>(
          "--pass",
          [&pass](const std::string& name) {
            for (const auto& [known, value] : kPasses)
              if (name == known) pass = value;
          },
          text)
      ->check(CLI::IsMember(names))
      ->default_str(passName(pass));
}

std::string passName(moecclPass_t pass) {
  for (const auto& [name, value] : kPasses)
    if (value == pass) return name;
  return {};
}

CLI::Option* addMemoryOption(CLI::App& app, moecclMemory_t& memory) {
  return app
      .add_option_function<std::string>(
          "--memory",
          [&memory](const std::string& name) {
            memory = name == "cuda" ? moecclMemoryCuda : moecclMemoryHost;
          },
          "host, or cuda: buffers on a GPU for each rank, and collectives over NCCL")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->default_str("host");
}

void addTurnOptions(CLI::App& app, int& iterations, int& warmupIterations, int& repetitions) {
  app.add_option("-n,--iters", iterations, "calls that are timed together")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", warmupIterations, "calls before those")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("-r,--repeats", repetitions,
                 "how often each of the competitors has its turn of -w and -n calls")
      ->check(kPositive)
      ->capture_default_str();
}

CLI::Option* addJsonOption(CLI::App& app, std::string& path) {
  return app.add_option("--json", path, "also write everything to this file")->type_name("FILE");
}

}  // namespace moeccl::perf

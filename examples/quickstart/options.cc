// Reads the quickstart's command line.
#include "options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <stdexcept>

#include "examples/common/command_line.h"

namespace quickstart {
namespace {

using command_line::Option;
using command_line::real;
using command_line::whole;
using command_line::wrong;

std::vector<std::string> commaSeparated(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text)
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

// The units of moeccl-lab's --uplink.
double bitsPerSecond(const std::string& text) {
  if (text == "none") return 0;
  double rate = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rate);
  std::string unit(stop, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  double factor = 1;
  for (const char* name : {"bit", "kbit", "mbit", "gbit", "tbit"}) {
    if (error == std::errc() && unit == name && rate > 0) return rate * factor;
    factor *= 1000;
  }
  wrong("uplink", text, "a rate with its unit, as in 100mbit or 1gbit, or none");
}

std::vector<Option> optionsOf(Options& options) {
  return {
      {"tokens", "N", "tokens per MP group (512)",
       whole<std::int64_t>("tokens", options.tokens, 1)},
      {"embedding", "N", "elements of a token (128)",
       whole<std::int64_t>("embedding", options.embedding, 1)},
      {"hidden", "N", "hidden units of an expert, a multiple of --esp (256)",
       whole<std::int64_t>("hidden", options.hidden, 1)},
      {"experts", "N", "experts, a multiple of --ep (twice --ep)",
       whole<std::int64_t>("experts", options.experts, 1)},
      {"top-k", "N", "experts per token (2)", whole<std::int64_t>("top-k", options.topK, 1)},
      {"capacity-factor", "F",
       "places per expert, as a multiple of what even routing would need (1.25)",
       real("capacity-factor", options.capacityFactor, false)},
      {"mp", "N", "ranks per MP group (2, or 1 if the number of ranks is odd)",
       whole("mp", options.nMp, 1)},
      {"ep", "N", "ranks per EP group (number of ranks / --esp)", whole("ep", options.nEp, 1)},
      {"esp", "N", "ranks per ESP group (number of ranks / --ep, or as --mp)",
       whole("esp", options.nEsp, 1)},
      {"text", "FILE", "English to take words from, may be given more than once",
       [&](const std::string& text) { options.texts.push_back(text); }},
      {"alltoall", "A,B",
       "algorithms of the baseline's all-to-all to compare (linear,hierarchical)",
       [&](const std::string& text) { options.allToAll = commaSeparated(text); }},
      {"dispatch", "A,B", "algorithms of S1's dispatch and combine to compare (flat,dedup)",
       [&](const std::string& text) { options.dispatch = commaSeparated(text); }},
      {"iterations", "N", "timed forward passes of each row (5)",
       whole<std::int64_t>("iterations", options.iterations, 1)},
      {"warm-up", "N", "forward passes before them (2)",
       whole<std::int64_t>("warm-up", options.warmUp, 0)},
      {"tolerance", "X", "largest error allowed, relative to the largest output (1e-5)",
       real("tolerance", options.tolerance, true)},
      {"seed", "N", "of the weights and of what words are embedded as (1)",
       whole<std::uint64_t>("seed", options.seed, 0)},
      {"uplink", "RATE", "what the nodes' uplinks carry, as in 100mbit, for the column \"uplink\"",
       [&](const std::string& text) { options.uplinkRate = bitsPerSecond(text); }},
      {"uplink-counter", "FILE", "holds the bytes that this rank's node has sent",
       [&](const std::string& text) { options.uplinkCounter = text; }},
      {"check", nullptr, "check these options, and do nothing else",
       [&](const std::string&) { options.checkOnly = true; }},
      {"help", nullptr, "show this help", [&](const std::string&) { options.help = true; }},
  };
}

// Only what traffic.cc can predict the bytes of.
void requireOneOf(const char* option, const std::vector<std::string>& names,
                  const std::vector<std::string>& known) {
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string text;
      for (const std::string& each : known) text += (text.empty() ? "" : ", ") + each;
      throw std::invalid_argument(std::string(option) + ": \"" + name + "\" is none of " + text);
    }
}

}  // namespace

Options parseOptions(int count, char** arguments) {
  Options options;
  command_line::parse(count, arguments, optionsOf(options));
  if (options.texts.empty() && !options.help)
    throw std::invalid_argument("--text is missing; name a file of English");
  requireOneOf("--alltoall", options.allToAll, {"linear", "pairwise", "hierarchical"});
  requireOneOf("--dispatch", options.dispatch, {"flat", "dedup"});
  return options;
}

std::string usage() {
  Options options;
  return "usage: quickstart --text FILE [OPTION...], started once for each rank by moeccl-lab "
         "run\n\n" +
         command_line::help(optionsOf(options));
}

}  // namespace quickstart

// Reads the arguments of moeccl-perf and checks them together.
#include "perf/perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "perf/common/collectives.h"
#include "perf/common/options.h"

namespace moeccl::perf {
namespace {

constexpr std::array kDataTypes = {
    DataType{"int8", moecclInt8, 1},           DataType{"uint8", moecclUint8, 1},
    DataType{"int32", moecclInt32, 4},         DataType{"uint32", moecclUint32, 4},
    DataType{"int64", moecclInt64, 8},         DataType{"uint64", moecclUint64, 8},
    DataType{"half", moecclFloat16, 2},        DataType{"float", moecclFloat32, 4},
    DataType{"double", moecclFloat64, 8},      DataType{"bfloat16", moecclBfloat16, 2},
    DataType{"fp8_e4m3", moecclFloat8e4m3, 1}, DataType{"fp8_e5m2", moecclFloat8e5m2, 1},
    DataType{"int16", moecclInt16, 2},         DataType{"uint16", moecclUint16, 2},
};

// Names of a table's entries for a message: "a, b or c".
template <typename Table>
std::string namesOf(const Table& table) {
  std::string text;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (i > 0) text += i + 1 < table.size() ? ", " : " or ";
    text += table[i].name;
  }
  return text;
}

void chooseCollective(const std::string& name, Options& options) {
  const auto table = collectives();
  const auto found = std::find_if(table.begin(), table.end(), [&](const MeasuredCollective& entry) {
    return entry.name == name;
  });
  if (found == table.end())
    throw CLI::ValidationError("COLLECTIVE",
                               "\"" + name + "\" is none; there are " + namesOf(table));
  options.collective = &*found;
}

void chooseDataTypes(const std::string& name, Options& options) {
  for (const DataType& entry : kDataTypes)
    if (name == "all" || name == entry.name) options.dataTypes.push_back(entry);
  if (options.dataTypes.empty())
    throw CLI::ValidationError("--datatype",
                               "\"" + name + "\" is none; there are all, " + namesOf(kDataTypes));
}

void checkNames(const char* option, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    // Anything else would read as a second setting in the communicator's config. A parameter may
    // follow a colon, as in bruck:radix=4.
    const std::string algorithm = name.substr(0, name.find(':'));
    if (algorithm.empty() || algorithm.find('=') != std::string::npos ||
        name.find_first_of("; ") != std::string::npos)
      throw CLI::ValidationError(option, "\"" + name + "\" is no algorithm's name");
    if (!seen.insert(name).second)
      throw CLI::ValidationError(option, "\"" + name + "\" is named twice");
  }
}

void checkTogether(const Options& options, const std::string& compare, bool algorithmsGiven) {
  for (const std::string& variable : options.mpiEnvironment)
    if (variable.find('=') == std::string::npos || variable.front() == '=')
      throw CLI::ValidationError("--mpi-env", "\"" + variable + "\" is not NAME=VALUE");
  if (options.memory != moecclMemoryHost && !compare.empty())
    throw CLI::ValidationError("--compare",
                               "MPI is measured on host memory alone; leave it, or "
                               "--memory, out");
  if (options.minBytes > options.maxBytes)
    throw CLI::ValidationError(
        "--minbytes", "the smallest size, " + std::to_string(options.minBytes) +
                          ", is above the largest, --maxbytes " + std::to_string(options.maxBytes));
  checkNames("--algorithms", options.algorithms);
  checkNames("--mpi-algorithms", options.mpiAlgorithms);
  if (algorithmsGiven && std::getenv("MOECCL_ALGO") != nullptr)
    throw CLI::ValidationError("--algorithms",
                               "MOECCL_ALGO is set and would override it; unset one of them");
}

}  // namespace

std::vector<std::uint64_t> Options::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = minBytes; size <= maxBytes;) {
    sizes.push_back(size);
    // A factor leaves 0 where it is.
    const std::uint64_t step = stepFactor > 1 ? size * (stepFactor - 1) : stepBytes;
    if (step == 0 || size > maxBytes - std::min(step, maxBytes)) break;
    size += step;
  }
  return sizes;
}

Parsed<Options> parseOptions(int argc, const char* const* argv) {
  Parsed<Options> parsed;
  Options& options = parsed.options;
  options.commandLine.assign(argv, argv + argc);
  std::string collective, dataType = "float", compare;
  int average = static_cast<int>(Average::kMean);

  CLI::App app(
      "Measures a collective as nccl-tests do, for several algorithms in turns.\n"
      "Ranks come from `moeccl-lab run`, from any launcher that sets MOECCL_RANK, MOECCL_NRANKS "
      "and\n"
      "MOECCL_ID_FILE, or from mpirun. perf/perf/README.md describes columns and JSON.",
      "moeccl-perf");
  app.add_option("COLLECTIVE", collective, namesOf(collectives()))->required();
  app.add_option("-b,--minbytes", options.minBytes, "smallest size, as in 1024, 1K, 1M")
      ->transform(kSize)
      ->capture_default_str();
  app.add_option("-e,--maxbytes", options.maxBytes, "largest size")
      ->transform(kSize)
      ->capture_default_str();
  auto* step = app.add_option("-i,--stepbytes", options.stepBytes, "from one size to the next")
                   ->transform(kSize & kPositive)
                   ->capture_default_str();
  app.add_option("-f,--stepfactor", options.stepFactor, "from one size to the next, instead of -i")
      ->check(kPositive)
      ->excludes(step);
  app.add_flag("--blocks", options.sizesOfBlocks,
               "-b, -e and -i are about one block, not about the whole buffer of a rank");
  addTurnOptions(app, options.iterations, options.warmupIterations, options.repetitions);
  app.add_option("-c,--check", options.checkIterations, "calls whose result is checked; 0: none")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("-a,--average", average, "over ranks: 0 rank 0's, 1 mean, 2 smallest, 3 largest")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-d,--datatype", dataType, "all, " + namesOf(kDataTypes))->capture_default_str();
  app.add_option("--algorithms", options.algorithms,
                 "comma-separated names, or auto for the library's choice (the default)")
      ->delimiter(',');
  addGridOption(app, options.grid,
                "of collectives of a grid (default: MP and ESP groups as large as nodes)");
  app.add_option("--experts", options.experts, "experts per rank, of collectives of a grid")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  auto* compareOption =
      app.add_option("--compare", compare, "mpi: let MPI's collective take turns with moeccl's")
          ->check(CLI::IsMember({"mpi"}));
  app.add_option(
         "--mpi-algorithms", options.mpiAlgorithms,
         "comma-separated names of Open MPI's \"tuned\" component, as in linear,pairwise, or\n"
         "default for MPI's choice (the default)")
      ->delimiter(',')
      ->needs(compareOption);
  app.add_option(
         "--mpi-env", options.mpiEnvironment,
         "NAME=VALUE: a variable that MPI alone gets to see, as UCX_RNDV_THRESH=inf; may be "
         "given\nmore than once")
      ->needs(compareOption);
  addMemoryOption(app, options.memory);
  addJsonOption(app, options.jsonFile);

  parse(app, argc, argv, parsed, [&] {
    chooseCollective(collective, options);
    chooseDataTypes(dataType, options);
    options.average = static_cast<Average>(average);
    checkTogether(options, compare, !options.algorithms.empty());
    if (options.algorithms.empty()) options.algorithms = {"auto"};
    if (!compare.empty() && options.mpiAlgorithms.empty()) options.mpiAlgorithms = {"default"};
  });
  return parsed;
}

}  // namespace moeccl::perf

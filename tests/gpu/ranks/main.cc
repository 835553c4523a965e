// ranks_gpu [--bench] [--nodes SIZES]... [--quick] [--limit SECONDS] [TEXT]
//
// Runs the tests of several ranks, or what measures, or those of either with TEXT in their name. A
// GPU for each rank, or one for all: NCCL takes ranks for different hosts when NCCL_HOSTID says so,
// and then lets them share it. moeccl sees the nodes of --nodes, as in 2+2, which may be given more
// than once.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/exec/gpu.h"
#include "tests/api/results.h"
#include "tests/gpu/launcher/launcher.h"
#include "tests/gpu/ranks/cuda_device.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

struct Options {
  std::vector<std::string> nodes;
  std::string only;
  int limitSeconds = 120;
  bool quick = false, bench = false;
  // Set in a rank's process.
  int rank = -1;
  std::string id, tests;
};

std::vector<int> sizesOf(const std::string& nodes) {
  std::vector<int> sizes;
  std::istringstream text(nodes);
  for (std::string size; std::getline(text, size, '+');) {
    sizes.push_back(std::atoi(size.c_str()));
    if (sizes.back() < 1) throw std::runtime_error("--nodes " + nodes + " is none; give 2+2");
  }
  if (sizes.empty()) throw std::runtime_error("--nodes is empty; give 2+2");
  return sizes;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&] {
      if (++i == argc) throw std::runtime_error(argument + " needs a value");
      return std::string(argv[i]);
    };
    if (argument == "--nodes")
      options.nodes.push_back(value());
    else if (argument == "--limit")
      options.limitSeconds = std::atoi(value().c_str());
    else if (argument == "--rank")
      options.rank = std::atoi(value().c_str());
    else if (argument == "--id")
      options.id = value();
    else if (argument == "--tests")
      options.tests = value();
    else if (argument == "--quick")
      options.quick = true;
    else if (argument == "--bench")
      options.bench = true;
    else if (argument.starts_with("-"))
      throw std::runtime_error("there is no option " + argument);
    else
      options.only = argument;
  }
  if (options.nodes.empty() && options.bench) options.nodes = {"2"};
  if (options.nodes.empty()) options.nodes = {"1", "2", "1+2", "2+2", "4+4"};
  return options;
}

std::string joined(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += name + ",";
  return text;
}

int sum(const std::vector<int>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), 0); }

// Whether the ranks of a job have one GPU together.
bool share(int ranks) { return cudaDevices() < ranks; }

std::string toHex(const moecclUniqueId& id) {
  std::string text;
  char digits[3];
  for (const char byte : id.internal) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

moecclUniqueId fromHex(const std::string& text) {
  moecclUniqueId id;
  if (text.size() != 2 * sizeof id.internal) throw std::runtime_error("--id is no id");
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

// ---- One rank ----

// To the launcher.
class Reporter final : public Watcher {
 public:
  void say(std::string line) {
    for (char& letter : line)
      if (letter == '\n') letter = ' ';
    line += '\n';
    if (write(kReports, line.data(), line.size()) < 0) std::_Exit(1);  // nobody listens
  }
  void step(const std::string& text) override { say("step " + text); }
  void failed(const std::string& text) override { say("fail " + text); }
};

int nodeOf(const std::vector<int>& sizes, int rank) {
  int node = 0;
  for (int first = 0; rank >= first + sizes[static_cast<std::size_t>(node)];)
    first += sizes[static_cast<std::size_t>(node++)];
  return node;
}

RanksTest testNamed(const std::string& name) {
  for (const std::vector<RanksTest>& tests : {ranksTests(), ranksBenches()})
    for (const RanksTest& test : tests)
      if (name == test.name) return test;
  throw std::runtime_error("there is no test " + name);
}

int runRank(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Reporter reporter;
  try {
    const std::vector<int> sizes = sizesOf(options.nodes.at(0));
    const int ranks = sum(sizes);
    const auto device = useCudaDevice(share(ranks) ? 0 : options.rank);
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    const std::string node = "node " + std::to_string(nodeOf(sizes, options.rank));
    config.nodeId = node.c_str();
    config.memory = moecclMemoryCuda;
    reporter.step("joining");
    moecclComm_t comm = nullptr;
    test::check(moecclCommInitRankConfig(&comm, ranks, fromHex(options.id), options.rank, &config));
    Rank rank(comm, *device, reporter, options.quick);
    std::istringstream names(options.tests);
    std::string name;
    for (int i = 0; std::getline(names, name, ','); ++i) {
      reporter.say("begin " + std::to_string(i));
      const int before = rank.steps();
      testNamed(name).run(rank);
      reporter.say("end " + std::to_string(i) + " " + std::to_string(rank.steps() - before));
    }
    rank.leave();
  } catch (const std::exception& error) {
    reporter.failed(error.what());
    return 1;
  }
  return 0;
}

// ---- All of them ----

// Bootstrap and messages take the loopback interface, which every machine has. Ranks that are
// tested are as small as NCCL can be: they need no bandwidth, and eight share the GPU.
std::vector<std::string> environmentOf(int rank, bool shared, bool bench) {
  std::vector<std::string> variables{"NCCL_SOCKET_IFNAME=lo"};
  if (shared) variables.push_back("NCCL_HOSTID=moeccl-rank-" + std::to_string(rank));
  if (!bench)
    variables.insert(variables.end(), {"NCCL_MAX_P2P_NCHANNELS=2", "NCCL_MAX_NCHANNELS=2"});
  return variables;
}

Counts runJob(const Options& options, const std::string& nodes,
              std::span<const std::string> tests) {
  moecclUniqueId id;
  test::check(moecclGetUniqueId(&id));
  const int ranks = sum(sizesOf(nodes));
  const bool shared = share(ranks);
  Launch job{.ranks = ranks,
             .tests = {tests.begin(), tests.end()},
             .limit = std::chrono::seconds(options.limitSeconds),
             .context = "on " + nodes + " ranks" + (shared ? " of one GPU" : "")};
  job.environment = [&](int rank) { return environmentOf(rank, shared, options.bench); };
  job.command = [&](int rank) {
    std::vector<std::string> command{"/proc/self/exe", "--rank",  std::to_string(rank),
                                     "--nodes",        nodes,     "--id",
                                     toHex(id),        "--tests", joined(tests)};
    if (options.quick) command.emplace_back("--quick");
    return command;
  };
  return launch(job);
}

int runAll(const Options& options) {
  std::vector<std::string> tests;
  int skipped = 0;
  for (const RanksTest& test : options.bench ? ranksBenches() : ranksTests())
    if (std::string(test.name).find(options.only) != std::string::npos)
      tests.emplace_back(test.name);
    else
      ++skipped;
  const int layouts = static_cast<int>(options.nodes.size());
  try {
    // No rank runs here, but what a rank would miss is better said once.
    std::printf("%s, %d GPUs\n", openGpu()->name().c_str(), cudaDevices());
    std::fflush(stdout);
  } catch (const Error& error) {
    std::printf("%s\n0 passed, 0 failed, %d skipped\n", error.what(),
                layouts * static_cast<int>(ranksTests().size()));
    return 77;
  }
  int passed = 0, failed = 0;
  for (const std::string& nodes : options.nodes)
    for (std::span<const std::string> rest = tests; !rest.empty();) {
      const Counts counts = runJob(options, nodes, rest);
      passed += counts.passed;
      failed += counts.failed;
      rest = rest.subspan(counts.done);
    }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, layouts * skipped);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace moeccl::gpu

int main(int argc, char** argv) {
  try {
    const moeccl::gpu::Options options = moeccl::gpu::parse(argc, argv);
    return options.rank < 0 ? moeccl::gpu::runAll(options) : moeccl::gpu::runRank(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ranks_gpu: %s\n", error.what());
    return 2;
  }
}

// The options of moeccl-perf.
#include "perf/perf/options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "perf/common/collectives.h"

namespace moeccl::perf {
namespace {

Parsed<Options> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "moeccl-perf");
  return parseOptions(static_cast<int>(arguments.size()), arguments.data());
}

using Sizes = std::vector<std::uint64_t>;

TEST(PerfOptions, DefaultsAreNcclTests) {
  const Parsed<Options> parsed = parse({"alltoall"});
  ASSERT_EQ(parsed.error, "");
  const Options& options = parsed.options;
  EXPECT_EQ(options.collective->name, "alltoall");
  EXPECT_EQ(options.sizes(), (Sizes{32 << 20}));
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmupIterations, 5);
  EXPECT_EQ(options.checkIterations, 1);
  EXPECT_EQ(options.average, Average::kMean);
  ASSERT_EQ(options.dataTypes.size(), 1u);
  EXPECT_STREQ(options.dataTypes[0].name, "float");
  EXPECT_EQ(options.algorithms, std::vector<std::string>{"auto"});
  EXPECT_TRUE(options.mpiAlgorithms.empty());
}

TEST(PerfOptions, Sizes) {
  EXPECT_EQ(parse({"alltoall", "-b", "1K", "-e", "9K", "-f", "3"}).options.sizes(),
            (Sizes{1024, 3072, 9216}));
  EXPECT_EQ(parse({"alltoall", "-b", "8", "-e", "20", "-i", "6"}).options.sizes(),
            (Sizes{8, 14, 20}));
  EXPECT_EQ(parse({"alltoall", "-b", "0", "-e", "4K", "-i", "4K"}).options.sizes(),
            (Sizes{0, 4096}));
  EXPECT_EQ(parse({"alltoall", "-b", "0", "-e", "4K", "-f", "2"}).options.sizes(), (Sizes{0}));
  const auto huge =
      parse({"alltoall", "-b", "9223372036854775808", "-e", "18446744073709551615", "-f", "2"});
  ASSERT_EQ(huge.error, "");
  EXPECT_EQ(huge.options.sizes(), (Sizes{std::uint64_t{1} << 63}));
}

TEST(PerfOptions, Lists) {
  const Parsed<Options> parsed =
      parse({"allgather", "--algorithms", "linear,ring", "--compare", "mpi", "-d", "all"});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.algorithms, (std::vector<std::string>{"linear", "ring"}));
  EXPECT_EQ(parsed.options.mpiAlgorithms, std::vector<std::string>{"default"});
  EXPECT_EQ(parsed.options.dataTypes.size(), std::size_t{moecclNumTypes});
}

TEST(PerfOptions, Memory) {
  EXPECT_EQ(parse({"alltoall"}).options.memory, moecclMemoryHost);
  EXPECT_EQ(parse({"alltoall", "--memory", "cuda"}).options.memory, moecclMemoryCuda);
}

TEST(PerfOptions, VariablesOfMpi) {
  const Parsed<Options> parsed = parse(
      {"alltoall", "--compare", "mpi", "--mpi-env", "UCX_RNDV_THRESH=inf", "--mpi-env", "A="});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.mpiEnvironment, (std::vector<std::string>{"UCX_RNDV_THRESH=inf", "A="}));
  EXPECT_NE(
      parse({"alltoall", "--compare", "mpi", "--mpi-env", "A"}).error.find("\"A\" is not NAME"),
      std::string::npos);
}

TEST(PerfOptions, MistakesAreNamed) {
  const struct {
    std::vector<const char*> arguments;
    std::vector<const char*> said;
  } mistakes[] = {
      {{}, {"COLLECTIVE"}},
      {{"alltoal"}, {"alltoal", "alltoall, alltoallv, allgather, "}},
      {{"alltoall", "-b", "many"}, {"many"}},
      {{"dispatch", "--grid", "2x0x2"}, {"2x0x2", "as in 2x4x2"}},
      {{"dispatch", "--grid", "2x4"}, {"2x4"}},
      {{"dispatch", "--grid", "2x4x2:esp"}, {"2x4x2:esp"}},
      {{"dispatch", "--experts", "0"}, {"--experts"}},
      {{"alltoall", "-b", "-8"}, {"-8"}},
      {{"alltoall", "-b", "2K", "-e", "1K"}, {"--minbytes", "2048", "1024"}},
      {{"alltoall", "-i", "0"}, {"--stepbytes"}},
      {{"alltoall", "-i", "8", "-f", "2"}, {"--stepbytes", "--stepfactor"}},
      {{"alltoall", "-f", "0"}, {"--stepfactor"}},
      {{"alltoall", "-n", "0"}, {"--iters"}},
      {{"alltoall", "-w", "-1"}, {"--warmup_iters"}},
      {{"alltoall", "-c", "-1"}, {"--check"}},
      {{"alltoall", "-r", "0"}, {"--repeats"}},
      {{"alltoall", "-a", "4"}, {"--average"}},
      {{"alltoall", "-d", "float31"}, {"float31", "bfloat16"}},
      {{"alltoall", "--algorithms", "linear,linear"}, {"--algorithms", "linear", "twice"}},
      {{"alltoall", "--algorithms", "alltoall=linear"}, {"--algorithms", "alltoall=linear"}},
      {{"alltoall", "--compare", "nccl"}, {"--compare", "nccl"}},
      {{"alltoall", "--compare", "mpi", "--memory", "cuda"}, {"--compare", "--memory"}},
      {{"alltoall", "--memory", "gpu"}, {"--memory", "gpu"}},
      {{"alltoall", "--mpi-algorithms", "linear"}, {"--mpi-algorithms", "--compare"}},
      {{"alltoall", "--no-such-option"}, {"--no-such-option"}},
  };
  for (const auto& [arguments, said] : mistakes) {
    const std::string error = parse(arguments).error;
    EXPECT_NE(error, "") << (arguments.empty() ? "" : arguments.back());
    for (const char* text : said) EXPECT_NE(error.find(text), std::string::npos) << error;
  }
}

TEST(PerfOptions, RefusesAnEnvironmentThatOverridesAlgorithms) {
  setenv("MOECCL_ALGO", "alltoall=linear", 1);
  EXPECT_EQ(parse({"alltoall"}).error, "");
  EXPECT_NE(parse({"alltoall", "--algorithms", "pairwise"}).error.find("MOECCL_ALGO"),
            std::string::npos);
  unsetenv("MOECCL_ALGO");
}

}  // namespace
}  // namespace moeccl::perf

// Settings out of configs and the environment, and how ranks compare them.
#include "src/comm/settings.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "src/base/structs.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using test::expectFailure;
using test::outcomeOf;

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

const Environment kNothing = with({});

std::string algorithmOf(const Settings& settings, Collective collective) {
  const Algorithm* algorithm = settings.choiceFor(collective).algorithm;
  return algorithm == nullptr ? "auto" : std::string(algorithm->name);
}

TEST(Settings, DefaultsWithAndWithoutConfig) {
  const moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  for (const moecclConfig_t* given : {static_cast<const moecclConfig_t*>(nullptr), &config}) {
    const Settings settings = readSettings(given, kNothing);
    EXPECT_FALSE(settings.progressThread);
    EXPECT_EQ(settings.timeoutMs, 300'000);
    EXPECT_EQ(settings.choiceFor(Collective::allToAll).algorithm, nullptr);
    EXPECT_EQ(settings.choiceFor(Collective::allGather).algorithm, nullptr);
    EXPECT_EQ(settings.nodeId, "");
    EXPECT_EQ(settings.transport, TransportChoice::automatic);
    EXPECT_EQ(settings.memory, moecclMemoryHost);
  }
}

TEST(Settings, TakesTheConfig) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.progressThread = 1;
  config.timeoutMs = 1234;
  config.algorithms = " alltoall = pairwise ;; allgather=ring;";
  config.nodeId = "rack 7";
  config.memory = moecclMemoryCuda;
  const Settings settings = readSettings(&config, kNothing);
  EXPECT_EQ(settings.memory, moecclMemoryCuda);
  EXPECT_TRUE(settings.progressThread);
  EXPECT_EQ(settings.timeoutMs, 1234);
  EXPECT_EQ(algorithmOf(settings, Collective::allToAll), "pairwise");
  EXPECT_EQ(algorithmOf(settings, Collective::allGather), "ring");
  EXPECT_EQ(settings.nodeId, "rack 7");
  config.timeoutMs = -5;
  EXPECT_EQ(readSettings(&config, kNothing).timeoutMs, kForever);
  config.timeoutMs = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(readSettings(&config, kNothing).timeoutMs, kForever);
}

TEST(Settings, TheEnvironmentOverrides) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.timeoutMs = 1234;
  config.algorithms = "alltoall=pairwise;allgather=ring";
  config.nodeId = "rack 7";
  Settings settings = readSettings(&config, with({{"MOECCL_TIMEOUT", "99"},
                                                  {"MOECCL_ALGO", "alltoall=hierarchical"},
                                                  {"MOECCL_NODE_ID", "rack 8"},
                                                  {"MOECCL_TRANSPORT", "ucx"}}));
  EXPECT_EQ(settings.timeoutMs, 99);
  EXPECT_EQ(algorithmOf(settings, Collective::allToAll), "hierarchical");
  EXPECT_EQ(algorithmOf(settings, Collective::allGather), "ring");  // per collective
  EXPECT_EQ(settings.nodeId, "rack 8");
  EXPECT_EQ(settings.transport, TransportChoice::ucx);

  settings = readSettings(&config, with({{"MOECCL_TIMEOUT", "0"},
                                         {"MOECCL_ALGO", "alltoall=auto"},
                                         {"MOECCL_NODE_ID", ""},
                                         {"MOECCL_TRANSPORT", "loopback"}}));
  EXPECT_EQ(settings.timeoutMs, kDefaultTimeoutMs);
  EXPECT_EQ(algorithmOf(settings, Collective::allToAll), "auto");
  EXPECT_EQ(settings.nodeId, "rack 7");  // empty is not set
  EXPECT_EQ(settings.transport, TransportChoice::loopback);
  EXPECT_EQ(readSettings(nullptr, with({{"MOECCL_TIMEOUT", "-1"}})).timeoutMs, kForever);
}

TEST(Settings, LinksAreMeasuredUnlessTheEnvironmentSaysNo) {
  EXPECT_TRUE(readSettings(nullptr, kNothing).probe);
  EXPECT_TRUE(readSettings(nullptr, with({{"MOECCL_PROBE", ""}})).probe);
  EXPECT_TRUE(readSettings(nullptr, with({{"MOECCL_PROBE", "1"}})).probe);
  EXPECT_FALSE(readSettings(nullptr, with({{"MOECCL_PROBE", "0"}})).probe);
}

TEST(Settings, Sockets) {
  const Settings plain = readSettings(nullptr, kNothing);
  EXPECT_EQ(plain.interfaces, "");
  EXPECT_EQ(plain.socketsPerPeer, 1);
  EXPECT_EQ(plain.unexpectedBytes, std::size_t{64} << 20);
  const Settings told = readSettings(nullptr, with({{"MOECCL_TRANSPORT", "tcp"},
                                                    {"MOECCL_SOCKET_IFNAME", "^docker"},
                                                    {"MOECCL_SOCKETS_PER_PEER", "4"},
                                                    {"MOECCL_UNEXPECTED_BYTES", "0"}}));
  EXPECT_EQ(told.transport, TransportChoice::tcp);
  EXPECT_EQ(told.interfaces, "^docker");
  EXPECT_EQ(told.socketsPerPeer, 4);
  EXPECT_EQ(told.unexpectedBytes, 0u);
}

TEST(Settings, FailureDetection) {
  EXPECT_EQ(readSettings(nullptr, kNothing).failureDetectionMs, 3000);
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.failureDetectionMs = 700;
  const Settings settings = readSettings(&config, kNothing);
  EXPECT_EQ(settings.failureDetectionMs, 700);
  EXPECT_EQ(readSplitSettings(settings, nullptr, kNothing).failureDetectionMs, 700);
  config.failureDetectionMs = -9;
  EXPECT_EQ(readSettings(&config, kNothing).failureDetectionMs, kForever);
  EXPECT_EQ(readSettings(&config, with({{"MOECCL_FAILURE_DETECTION", "50"}})).failureDetectionMs,
            50);
  EXPECT_THROW(readSettings(&config, with({{"MOECCL_FAILURE_DETECTION", "5s"}})), Error);
}

TEST(Settings, EveryRegisteredAlgorithmCanBeNamed) {
  for (const Algorithm& algorithm : algorithms()) {
    const std::string text =
        std::string(nameOf(algorithm.collective)) + "=" + std::string(algorithm.name);
    const Settings settings = readSettings(nullptr, with({{"MOECCL_ALGO", text}}));
    EXPECT_EQ(settings.choiceFor(algorithm.collective).algorithm, &algorithm) << text;
  }
}

TEST(Settings, WrongVariablesAreNamed) {
  const auto read = [](const char* name, const char* value) {
    return outcomeOf([&] { readSettings(nullptr, with({{name, value}})); });
  };
  for (const char* wrong : {"soon", "1.5", "12ms", " 3", "99999999999999999999"})
    expectFailure(read("MOECCL_TIMEOUT", wrong), moecclInvalidArgument,
                  "MOECCL_TIMEOUT is \"" + std::string(wrong) + "\"; it must be a whole number");
  expectFailure(read("MOECCL_TRANSPORT", "udp"), moecclInvalidArgument,
                "MOECCL_TRANSPORT is \"udp\"; it must be auto, loopback, tcp or ucx");
  for (const char* wrong : {"0", "17", "-1", "two", "1.5"})
    expectFailure(read("MOECCL_SOCKETS_PER_PEER", wrong), moecclInvalidArgument,
                  "MOECCL_SOCKETS_PER_PEER is \"" + std::string(wrong) +
                      "\"; it must be a whole number from 1 to 16");
  expectFailure(read("MOECCL_REGISTER", "2"), moecclInvalidArgument,
                "MOECCL_REGISTER is \"2\"; it must be a whole number from 0 to 1");
  expectFailure(read("MOECCL_UNEXPECTED_BYTES", "64M"), moecclInvalidArgument,
                "MOECCL_UNEXPECTED_BYTES is \"64M\"; it must be a whole number from 0 to");
  expectFailure(read("MOECCL_ALGO", "alltoall"), moecclInvalidArgument,
                "\"alltoall\" is not of the form collective=algorithm");
  expectFailure(read("MOECCL_ALGO", "allgather=ring;bogus=ring"), moecclInvalidArgument,
                "there is no collective \"bogus\"; there are: alltoall, alltoallv, allgather");
  expectFailure(
      read("MOECCL_ALGO", "alltoall=ring"), moecclInvalidArgument,
      "alltoall has no algorithm \"ring\"; it has: auto, linear, pairwise, bruck, hierarchical");
  expectFailure(read("MOECCL_ALGO", "alltoall=linear;alltoall=pairwise"), moecclInvalidArgument,
                "alltoall is there twice");
  expectFailure(read("MOECCL_ALGO", "alltoall=linear,allgather=ring"), moecclInvalidArgument,
                "MOECCL_ALGO = \"alltoall=linear,allgather=ring\"");
}

TEST(Settings, ParametersOutOfRangeAreNamed) {
  struct Wrong {
    const char* setting;
    const char* text;
  };
  for (const auto& [setting, text] :
       {Wrong{"alltoall=bruck:radix=1", "radix is 1; it must be from 2 to 65536"},
        {"alltoall=bruck:radix=-2147483648", "radix is -2147483648"},
        {"alltoall=bruck:radix=65537", "radix is 65537"},
        {"allgather=linear:window=-1", "window is -1; it must be from 0 to 65536"},
        {"alltoall=hierarchical:leaders=-3", "leaders is -3; it must be from 0 to 65536"},
        {"combineallgather=pipelined:chunks=0", "chunks is 0; it must be from 1 to 32"},
        {"combineallgather=pipelined:chunks=33", "chunks is 33; it must be from 1 to 32"},
        {"alltoall=linear:window=99999999999", "window must be a whole number"},
        {"alltoall=linear:window=2,window=x", "window must be a whole number"},
        {"alltoall=linear:width=2", "there is no parameter \"width\""}}) {
    const Environment environment = with({{"MOECCL_ALGO", setting}});
    expectFailure(outcomeOf([&] { readSettings(nullptr, environment); }), moecclInvalidArgument,
                  "MOECCL_ALGO = \"" + std::string(setting) + "\"");
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    config.algorithms = setting;
    expectFailure(outcomeOf([&] { readSettings(&config, kNothing); }), moecclInvalidArgument, text);
  }
  for (const char* right : {"alltoall=bruck:radix=2", "alltoall=linear:window=0",
                            "alltoall=hierarchical:leaders=0", "allgather=linear:window=65536"})
    EXPECT_NO_THROW(readSettings(nullptr, with({{"MOECCL_ALGO", right}}))) << right;
}

TEST(Settings, SplitsInherit) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.progressThread = 1;
  config.nodeId = "n";
  config.timeoutMs = 5;
  config.algorithms = "alltoall=linear";
  config.memory = moecclMemoryCuda;
  const Settings parent = readSettings(&config, with({{"MOECCL_TRANSPORT", "ucx"}}));
  Settings split = readSplitSettings(parent, nullptr, kNothing);
  EXPECT_EQ(comparable(split, 2), comparable(parent, 2));

  config = MOECCL_CONFIG_INITIALIZER;
  config.nodeId = "ignored";
  config.algorithms = "allgather=ring";
  split = readSplitSettings(parent, &config, with({{"MOECCL_ALGO", "alltoall=pairwise"}}));
  EXPECT_TRUE(split.progressThread);
  EXPECT_EQ(split.nodeId, "n");
  EXPECT_EQ(split.memory, moecclMemoryCuda);
  EXPECT_EQ(split.transport, TransportChoice::ucx);
  EXPECT_EQ(split.timeoutMs, kDefaultTimeoutMs);
  EXPECT_EQ(algorithmOf(split, Collective::allGather), "ring");
  EXPECT_EQ(algorithmOf(split, Collective::allToAll), "pairwise");
  config.magic = 0;
  EXPECT_EQ(outcomeOf([&] { readSplitSettings(parent, &config, kNothing); }).result,
            moecclInvalidArgument);
}

std::string recordWith(std::map<std::string, std::string> variables, int ranks) {
  return comparable(readSettings(nullptr, with(std::move(variables))), ranks);
}

TEST(Settings, AgreementIsSilent) {
  // What may differ does not count.
  EXPECT_EQ(disagreement(std::vector<std::string>{recordWith({{"MOECCL_NODE_ID", "a"}}, 2),
                                                  recordWith({{"MOECCL_NODE_ID", "b"}}, 2)}),
            "");
  EXPECT_EQ(disagreement(std::vector<std::string>{recordWith({}, 1)}), "");
}

TEST(Settings, DisagreementNamesRanksAndSetting) {
  const std::string plain = recordWith({}, 8), quick = recordWith({{"MOECCL_TIMEOUT", "1000"}}, 8),
                    ring = recordWith({{"MOECCL_ALGO", "allgather=ring"}}, 8),
                    forever = recordWith({{"MOECCL_TIMEOUT", "-1"}}, 8);
  EXPECT_EQ(disagreement(std::vector{quick, plain, plain, plain}),
            "ranks disagree on timeoutMs: rank 0 has 1000, ranks 1-3 have 300000");
  EXPECT_EQ(disagreement(std::vector{plain, ring, plain}),
            "ranks disagree on the algorithm of allgather: ranks 0, 2 have auto, rank 1 has ring");
  EXPECT_EQ(disagreement(std::vector{plain, recordWith({}, 9)}),
            "ranks disagree on nRanks: rank 0 has 8, rank 1 has 9");
  moecclConfig_t onGpus = MOECCL_CONFIG_INITIALIZER;
  onGpus.memory = moecclMemoryCuda;
  EXPECT_EQ(
      disagreement(std::vector{plain, comparable(readSettings(&onGpus, kNothing), 8)}),
      "ranks disagree on config.memory: rank 0 has moecclMemoryHost, rank 1 has moecclMemoryCuda");
  EXPECT_EQ(disagreement(std::vector{plain, recordWith({{"MOECCL_TRANSPORT", "ucx"}}, 8)}),
            "ranks disagree on MOECCL_TRANSPORT: rank 0 has auto, rank 1 has ucx");
  // The first setting that differs, whichever ranks differ in which.
  EXPECT_EQ(disagreement(std::vector{plain, ring, forever}),
            "ranks disagree on timeoutMs: ranks 0, 1 have 300000, rank 2 has for ever");
  std::vector<std::string> all;
  for (int i = 1; i <= 6; ++i)
    all.push_back(recordWith({{"MOECCL_TIMEOUT", std::to_string(i)}}, 6));
  EXPECT_EQ(disagreement(all),
            "ranks disagree on timeoutMs: rank 0 has 1, rank 1 has 2, rank 2 has 3, rank 3 has 4, "
            "the others something else again");
}

TEST(Settings, RecordsOfOtherVersionsAreCompared) {
  const std::string ours = recordWith({}, 2);
  EXPECT_EQ(disagreement(std::vector{ours, ours + "a later setting=1\n"}),
            "ranks disagree on a later setting: rank 0 has nothing, rank 1 has 1");
  EXPECT_NE(disagreement(std::vector{ours, std::string("nRanks=2\n")}), "");
  EXPECT_NE(disagreement(std::vector{ours, std::string()}), "");
}

}  // namespace
}  // namespace moeccl

// Profiles through the public API: stored and loaded, agreed on, and samples that are refused.
#include "tests/api/profiles.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/temporary_folder.h"

namespace moeccl::test {
namespace {

TEST(Profile, IsWhatWasStored) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "profile.json";
  runJob(kJob, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = profileOn(comm, grid, 1.5), again = nullptr;
    if (rank == 0) check(moecclProfileSave(profile, path.c_str()));
    char byte = 0, bytes[4];
    check(moecclAllGather(&byte, bytes, 1, moecclInt8, comm, nullptr), comm);
    check(moecclProfileLoad(path.c_str(), &again));
    check(moecclCommSetProfile(comm, profile), comm);
    const auto before = schedules(grid, layerConfig());
    check(moecclCommSetProfile(comm, again), comm);
    const auto after = schedules(grid, layerConfig());
    for (std::size_t i = 0; i < before.size(); ++i)
      checkThat(before[i].seconds == after[i].seconds, "another time");
    check(moecclProfileDestroy(again));
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
  // MOECCL_PROFILE is the same for a whole job.
  setenv("MOECCL_PROFILE", path.c_str(), 1);
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    checkThat(choiceOf(schedules(grid, layerConfig()), moecclScheduleS1).communication > 3.9,
              "the profile is not used");
    check(moecclGridDestroy(grid));
  });
  unsetenv("MOECCL_PROFILE");
}

// All ranks come to the same profile, though their clocks differ; that is what RanksMustHaveTheSame
// would find.
TEST(Profile, SaysWhenItWasMadeAndByWhat) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "profile.json";
  runJob(kJob, [&](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(400 * rank));
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"allgather", "ring", 1.0, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    if (rank == 0) check(moecclProfileSave(profile, path.c_str()));
    check(moecclProfileDestroy(profile));
  });
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(std::regex_search(text, std::regex("\"date\": \"20\\d\\d-\\d\\d-\\d\\dT"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\"command\": \"[^\"]*profiles_test"))) << text;
}

TEST(Profile, OfAnotherClusterIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "profile.json";
  runJob({.ranks = 4, .nodes = {4}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    if (rank == 0) check(moecclProfileSave(profile, path.c_str()));
    check(moecclProfileDestroy(profile));
  });
  runJob(kJob, [&](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileLoad(path.c_str(), &profile));
    checkError(moecclCommSetProfile(comm, profile), moecclInvalidUsage, comm,
               {"on rank 0", "1 node of 4 ranks", "2 nodes of 2 ranks"});
    check(moecclProfileDestroy(profile));
    // The communicator is as good as before.
    int in[4] = {}, out[4];
    check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
  });
}

TEST(Profile, RanksMustHaveTheSame) {
  runJob(kJob, [](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"allgather", "ring", rank == 2 ? 1.0 : 2.0, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    checkError(moecclCommSetProfile(comm, profile), moecclInvalidUsage, comm,
               {"rank 2 with another than rank 0"});
    checkError(moecclCommSetProfile(comm, rank == 3 ? nullptr : profile), moecclInvalidUsage, comm,
               {"rank 2 with another than rank 0"});
    check(moecclProfileDestroy(profile));
  });
}

TEST(Profile, BadFilesAreNamed) {
  const TemporaryFolder folder;
  moecclProfile_t profile = nullptr;
  checkError(moecclProfileLoad("/nowhere/profile.json", &profile), moecclSystemError, nullptr,
             {"/nowhere/profile.json", "No such file"});
  const std::string path = folder.path() / "broken.json";
  std::ofstream(path) << "{\"schema\": 1, ";
  checkError(moecclProfileLoad(path.c_str(), &profile), moecclInvalidArgument, nullptr, {path});
}

TEST(Profile, BadSamplesAreNamed) {
  runJob({.ranks = 1, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    const auto refused = [&](auto change, const std::vector<std::string>& parts) {
      moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
      sample.collective = "allgather";
      sample.algorithm = "ring";
      sample.comm = comm;
      sample.bytes = 8;
      sample.seconds = 1;
      change(sample);
      checkError(moecclProfileAddCollective(profile, &sample), moecclInvalidArgument, nullptr,
                 parts);
    };
    refused([](auto& s) { s.collective = "gathering"; }, {"\"gathering\"", "allgather"});
    refused([](auto& s) { s.collective = nullptr; }, {"sample.collective is NULL"});
    refused([](auto& s) { s.algorithm = nullptr; }, {"sample.algorithm is NULL"});
    refused([](auto& s) { s.algorithm = "rnig"; }, {"sample.algorithm", "\"rnig\"", "ring"});
    refused([](auto& s) { s.algorithm = "auto"; }, {"sample.algorithm is \"auto\""});
    refused([](auto& s) { s.algorithm = "ring;alltoall=linear"; }, {"sample.algorithm is", "one"});
    refused([](auto& s) { s.seconds = 0; }, {"sample.seconds is 0"});
    refused([](auto& s) { s.seconds = std::numeric_limits<double>::quiet_NaN(); }, {"seconds is"});
    refused([](auto& s) { s.spread = -1; }, {"sample.spread is -1"});
    refused([](auto& s) { s.comm = nullptr; }, {"sample.comm is NULL"});
    refused(
        [](auto& s) {
          s.collective = "dispatch";
          s.algorithm = "flat";
        },
        {"sample.grid is NULL"});
    refused([](auto& s) { s.magic = 0; }, {"MOECCL_COLLECTIVE_SAMPLE_INITIALIZER"});

    moecclGrid_t grid = gridOn(comm, {1, 1, 1, moecclOrderEspEp});
    moecclMoeConfig_t config = layerConfig();
    config.datatype = moecclFloat64;
    moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
    sample.seconds = 1;
    check(moecclMoeLayerCreate(grid, &config, &sample.layer));
    checkError(moecclProfileAddLayer(profile, &sample), moecclInvalidArgument, nullptr,
               {"sample.layer", "moecclFloat32"});
    check(moecclMoeLayerDestroy(sample.layer));
    check(moecclGridDestroy(grid));
    check(moecclProfileDestroy(profile));
  });
}

// A sample is of what a rank computes by itself.
TEST(Profile, SamplesOfLayersWithExchangesAreRefused) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    const moecclMoeConfig_t config = layerConfig();
    moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
    sample.seconds = 1;
    check(moecclMoeLayerCreate(grid, &config, &sample.layer));
    checkError(moecclProfileAddLayer(profile, &sample), moecclInvalidArgument, nullptr,
               {"sample.layer has", "ranks; it must have one"});
    check(moecclMoeLayerDestroy(sample.layer));
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

}  // namespace
}  // namespace moeccl::test

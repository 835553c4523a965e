// `moeccl-perf route --memory cuda`, with doubles for CUDA and NCCL: ranks are threads, each with a
// device of its own, which finds fault with what no stream orders.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "perf/perf/route.h"
#include "tests/exec/gpu_jobs.h"

namespace moeccl::test {
namespace {

class GpuMemory final : public perf::Memory {
 public:
  ~GpuMemory() override { myGpu().deleteStream(stream_); }

  moecclMemory_t kind() const override { return moecclMemoryCuda; }
  std::string device() const override { return "double"; }
  std::byte* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    std::byte* const memory = myGpu().allocate(bytes);
    const std::vector<std::byte> zeros(bytes);
    put(memory, zeros.data(), bytes);
    return memory;
  }
  void free(std::byte* memory) noexcept override {
    if (memory != nullptr) myGpu().free(memory);
  }
  void put(std::byte* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) myGpu().toDevice(to, from, bytes, stream_);
    synchronize();
  }
  void get(void* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > 0) myGpu().toHost(to, from, bytes, stream_);
    synchronize();
  }
  moecclStream_t stream() const override { return stream_; }
  void synchronize() override { myGpu().synchronize(stream_); }

 private:
  const moecclStream_t stream_ = myGpu().newStream(false);
};

nlohmann::json measure(perf::RouteOptions options) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) /
                                     (std::string(options.dataType.name) + "_routes.json");
  options.memory = moecclMemoryCuda;
  options.jsonFile = file;
  options.commandLine = {"moeccl-perf", "route"};
  GpusOfJobs gpus({.seed = 3, .threads = true, .ownMemory = true});
  gpus.run({.ranks = 3, .nodes = {2, 1}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    moecclComm_t own = nullptr;
    check(moecclCommSplit(comm, 0, rank, &own, nullptr), comm);
    perf::Job job(perf::Comm(own), std::make_unique<GpuMemory>());
    checkThat(perf::measureRoutes(options, job) == 0, "elements are wrong");
    job.leave();
  });
  std::ifstream in(file);
  nlohmann::json json = nlohmann::json::parse(in);
  std::filesystem::remove(file);
  return json;
}

TEST(PerfRoute, RunsOnGpus) {
  perf::RouteOptions options;
  options.algorithms = {"flat", "rank", "node", "auto", "latency"};
  options.experts = 5;
  options.choices = 3;
  options.tokens = 6;
  options.hidden = 128;
  options.iterations = 1;
  options.repetitions = 2;
  const perf::DataType bfloat16{"bfloat16", moecclBfloat16, 2};
  const perf::DataType types[] = {bfloat16,
                                  {"half", moecclFloat16, 2},
                                  {"float", moecclFloat32, 4},
                                  {"fp8_e4m3", moecclFloat8e4m3, 1},
                                  {"fp8_e5m2", moecclFloat8e5m2, 1}};
  for (const perf::DataType& type : types) {
    SCOPED_TRACE(type.name);
    options.dataType = type;
    options.combined = options.isQuantised() ? bfloat16 : type;
    const nlohmann::json json = measure(options);
    EXPECT_EQ(json["memory"], "cuda");
    EXPECT_EQ(json["device"], "double");
    EXPECT_EQ(json["ranksPerNode"], (std::vector<int>{2, 1}));
    ASSERT_EQ(json["results"].size(), options.algorithms.size());
    for (std::size_t i = 0; i < options.algorithms.size(); ++i) {
      const nlohmann::json& result = json["results"][i];
      EXPECT_EQ(result["name"], options.algorithms[i]);
      EXPECT_EQ(result["wrong"], 0);
      for (const char* part : {"begin", "dispatch", "combine"})
        EXPECT_EQ(result[part]["timesUs"].size(), 2u);
    }
  }
}

}  // namespace
}  // namespace moeccl::test

// Makes, fills, fits and saves a profile by the public API, and checks early that a file can be
// written.
#include "perf/fit/profile.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "perf/common/output_file.h"

namespace moeccl::perf {

ProfileBuilder ProfileBuilder::of(const Job& job) {
  moecclProfile_t profile = nullptr;
  require(moecclProfileCreate(job.comm(), &profile), "make a profile", job.comm());
  return ProfileBuilder(profile);
}

ProfileBuilder ProfileBuilder::load(const std::string& path) {
  moecclProfile_t profile = nullptr;
  require(moecclProfileLoad(path.c_str(), &profile), "read the profile", nullptr);
  return ProfileBuilder(profile);
}

void ProfileBuilder::add(moecclCollectiveSample_t sample, const std::string& collective,
                         const std::string& algorithm, std::size_t bytes, const Median& seconds) {
  sample.collective = collective.c_str();
  sample.algorithm = algorithm.c_str();
  sample.bytes = bytes;
  sample.seconds = seconds.value;
  sample.spread = seconds.spread;
  require(moecclProfileAddCollective(get(), &sample), "add a sample", nullptr);
  ++samples_;
}

void ProfileBuilder::add(const std::string& collective, const std::string& algorithm,
                         moecclComm_t comm, bool alone, std::size_t bytes, const Median& seconds) {
  moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
  sample.comm = comm;
  sample.alone = alone;
  add(sample, collective, algorithm, bytes, seconds);
}

void ProfileBuilder::add(const std::string& collective, const std::string& algorithm,
                         moecclGrid_t grid, std::size_t bytes, const Median& seconds) {
  moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
  sample.grid = grid;
  add(sample, collective, algorithm, bytes, seconds);
}

void ProfileBuilder::add(moecclGrid_t grid, const moecclMoeConfig_t& layer, moecclPass_t pass,
                         const Median& seconds) {
  moecclMoeLayer_t made = nullptr;
  require(moecclMoeLayerCreate(grid, &layer, &made), "make a layer", nullptr);
  const std::unique_ptr<moecclMoeLayer, decltype(&moecclMoeLayerDestroy)> owner(
      made, moecclMoeLayerDestroy);
  moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
  sample.layer = made;
  sample.pass = pass;
  sample.seconds = seconds.value;
  sample.spread = seconds.spread;
  require(moecclProfileAddLayer(get(), &sample), "add a sample", nullptr);
  ++samples_;
}

void ProfileBuilder::fit() { require(moecclProfileFit(get()), "fit the samples", nullptr); }

void ProfileBuilder::save(const std::string& path) const {
  require(moecclProfileSave(get(), path.c_str()), "write the profile", nullptr);
}

void ProfileBuilder::save(const std::string& path, double seconds,
                          const std::vector<std::string>& doubts) {
  save(path);
  nlohmann::ordered_json json;
  {
    std::ifstream file(path);
    json = nlohmann::ordered_json::parse(file);
  }
  json["duration"] = seconds;
  if (!doubts.empty()) json["doubts"] = doubts;
  OutputFile("--output", path).write(json.dump());
  // As the library writes it.
  profile_ = std::move(load(path).profile_);
  save(path);
}

void requireWritable(const char* option, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  std::error_code ignored;
  const bool isFolder = fs::is_directory(path, ignored);
  if (!isFolder && access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw std::runtime_error(std::string(option) + ": cannot write " + path + ": " +
                           std::strerror(isFolder ? EISDIR : errno));
}

}  // namespace moeccl::perf

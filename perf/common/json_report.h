// The JSON files of moeccl-perf: how they begin, and how times are written.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/json.h"
#include "perf/common/output_file.h"
#include "perf/common/statistics.h"

namespace moeccl::perf {

inline nlohmann::ordered_json toJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

class JsonReport {
 public:
  // Opens the file, so that a wrong name is found before anything is measured, and begins with what
  // every run has. Throws std::runtime_error.
  JsonReport(const char* schema, int schemaVersion, const std::string& file,
             const std::vector<std::string>& commandLine, const Job& job)
      : file_("--json", file), device_(job.memory().device()) {
    require(moecclGetVersion(&version_), "ask for the version", nullptr);
    json_ = {
        {"schema", schema},
        {"schemaVersion", schemaVersion},
        {"commandLine", commandLine},
        {"moecclVersion", version_},
        {"memory", job.memory().kind() == moecclMemoryCuda ? "cuda" : "host"},
        {"device", device_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(device_)},
        {"ranks", job.ranks()},
        {"ranksPerNode", job.ranksPerNode()},
    };
  }

  // "# moeccl-perf layers, moeccl 0.3.0: 4 ranks, by node: 2 2", and the device.
  void printHead(const char* tool) const {
    std::string nodes;
    for (const int size : json_["ranksPerNode"].get<std::vector<int>>())
      nodes += ' ' + std::to_string(size);
    std::printf("# %s, moeccl %d.%d.%d: %d ranks, by node:%s\n", tool, version_ / 10000,
                version_ / 100 % 100, version_ % 100, json_["ranks"].get<int>(), nodes.c_str());
    if (!device_.empty()) std::printf("# on GPUs: rank 0 has an %s\n", device_.c_str());
  }

  // Further members of the run, which come before its results.
  void describe(const nlohmann::ordered_json& members) { json_.update(members); }
  void add(nlohmann::ordered_json result) { json_["results"].push_back(std::move(result)); }
  // Throws std::runtime_error.
  void write() { file_.write(json_.dump(1) + '\n'); }

 private:
  OutputFile file_;
  std::string device_;
  nlohmann::ordered_json json_;
  int version_ = 0;
};

}  // namespace moeccl::perf

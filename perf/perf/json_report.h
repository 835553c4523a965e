// What the JSON files of moeccl-perf have in common: how they begin, and how times are written.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "perf/common/job.h"
#include "perf/common/output_file.h"
#include "perf/common/statistics.h"

namespace moeccl::perf {

inline nlohmann::ordered_json toJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

class JsonReport {
 public:
  // Opens options.jsonFile, and begins with what a run of either kind has. Throws
  // std::runtime_error.
  template <typename AnyOptions>
  JsonReport(const char* schema, int schemaVersion, const AnyOptions& options, const Job& job)
      : file_("--json", options.jsonFile), device_(job.memory().device()) {
    require(moecclGetVersion(&version_), "ask for the version", nullptr);
    json_ = {
        {"schema", schema},
        {"schemaVersion", schemaVersion},
        {"commandLine", options.commandLine},
        {"moecclVersion", version_},
        {"memory", options.memory == moecclMemoryCuda ? "cuda" : "host"},
        {"device", device_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(device_)},
        {"ranks", job.ranks()},
        {"ranksPerNode", job.ranksPerNode()},
        {"iterations", options.iterations},
        {"warmupIterations", options.warmupIterations},
        {"repetitions", options.repetitions},
    };
  }

  int version() const { return version_; }  // the library's
  void printDevice() const {
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

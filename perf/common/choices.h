// What the library answers about schedules and algorithms, owned.
#pragma once

#include <moeccl/select.h>

#include <memory>
#include <string>
#include <vector>

namespace moeccl::perf {

// The schedules for a layer, the fastest predicted first.
class ScheduleChoices {
 public:
  // Throws std::runtime_error where the library refuses.
  explicit ScheduleChoices(const moecclScheduleQuery_t& query);
  // Empty choices, and `refused` with the library's text, where it calls an argument wrong.
  ScheduleChoices(const moecclScheduleQuery_t& query, std::string* refused);

  int count() const { return count_; }
  moecclScheduleChoice_t choice(int index) const;
  // Texts in them live as long as this.
  std::vector<moecclScheduleExchange_t> exchanges(int index) const;
  // "dispatch: dedup, combine: flat", of the first pass that was asked about.
  std::string text(int index) const;

 private:
  struct Destroy {
    void operator()(moecclScheduleChoices_t choices) const {
      moecclScheduleChoicesDestroy(choices);
    }
  };
  std::unique_ptr<moecclScheduleChoices, Destroy> handle_;
  int count_ = 0;
};

struct PredictedAlgorithm {
  std::string algorithm;
  double seconds;
  double alpha, beta;
};
// The algorithms for a collective, the fastest predicted first. Throws std::runtime_error.
std::vector<PredictedAlgorithm> algorithmChoices(const moecclCluster_t& cluster,
                                                 const std::string& collective, std::size_t bytes,
                                                 int expertsPerRank);

}  // namespace moeccl::perf

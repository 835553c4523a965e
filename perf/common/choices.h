// What the library answers about schedules and algorithms, owned.
#pragma once

#include <moeccl/model.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moeccl::perf {

// The algorithms for a collective, or the schedules for a layer, the fastest predicted first.
class Choices {
 public:
  // Throws std::runtime_error where the library refuses.
  explicit Choices(const moecclQuery_t& query);
  // Empty choices, and `refused` with the library's text, where it calls an argument wrong.
  Choices(const moecclQuery_t& query, std::string* refused);

  int count() const { return count_; }
  moecclChoice_t choice(int index) const;
  // Texts in them live as long as this.
  std::vector<moecclChoice_t> exchanges(int index) const;
  // "dispatch: dedup, combine: flat", of the first pass that was asked about.
  std::string text(int index) const;

 private:
  struct Destroy {
    void operator()(moecclChoices_t choices) const { moecclChoicesDestroy(choices); }
  };
  std::unique_ptr<moecclChoices, Destroy> handle_;
  int count_ = 0;
};

// Predicted by fits of what was measured alone.
inline bool isMeasured(const moecclChoice_t& choice) {
  return std::string_view(choice.source) == "curves";
}

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

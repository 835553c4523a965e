// What the library answers about schedules and algorithms, owned.
#pragma once

#include <moeccl/model.h>

#include <memory>
#include <string>
#include <vector>

namespace moeccl::perf {

// One choice, as moecclChoice_t has it.
struct Prediction {
  moecclSchedule_t schedule;  // of a layer; auto: an algorithm
  double seconds;
  double communication;
  bool measured;          // predicted by fits of what was measured alone
  std::string exchanges;  // "dispatch: dedup, combine: flat", of the first pass asked about
  std::string name = {};
  double bytesBetween = 0, alpha = 0, beta = 0;
};

// The algorithms for a collective, or the schedules for a layer, the fastest predicted first.
class Choices {
 public:
  // Throws std::runtime_error where the library refuses.
  explicit Choices(const moecclQuery_t& query);
  // Empty choices, and `refused` with the library's text, where it calls an argument wrong.
  Choices(const moecclQuery_t& query, std::string* refused);

  int count() const { return count_; }
  std::vector<Prediction> predictions() const;
  // Texts in them live as long as this.
  std::vector<moecclChoice_t> exchanges(int index) const;

 private:
  moecclChoice_t choice(int index) const;

  struct Destroy {
    void operator()(moecclChoices_t choices) const { moecclChoicesDestroy(choices); }
  };
  std::unique_ptr<moecclChoices, Destroy> handle_;
  int count_ = 0;
};

// The algorithms for a collective, the fastest predicted first. Throws std::runtime_error.
std::vector<Prediction> algorithmChoices(const moecclCluster_t& cluster,
                                         const std::string& collective, std::size_t bytes,
                                         int expertsPerRank);

// For what the library refuses. Throws std::runtime_error with its text, unless it succeeded.
void requireDone(moecclResult_t result, const char* what);

}  // namespace moeccl::perf

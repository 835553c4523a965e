// The profile that a run makes: samples as the public API takes them.
#pragma once

#include <moeccl/model.h>

#include <memory>
#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/fit/median.h"

namespace moeccl::perf {

class ProfileBuilder {
 public:
  // Empty. Collective. All functions throw std::runtime_error.
  static ProfileBuilder of(const Job& job);
  static ProfileBuilder load(const std::string& path);

  // Adds a sample of a group, `alone` or with all groups like it; of a grid's collective; of a
  // layer's pass, where `grid` is of one rank.
  void add(const std::string& collective, const std::string& algorithm, moecclComm_t comm,
           bool alone, std::size_t bytes, const Median& seconds);
  void add(const std::string& collective, const std::string& algorithm, moecclGrid_t grid,
           std::size_t bytes, const Median& seconds);
  void add(moecclGrid_t grid, const moecclMoeConfig_t& layer, moecclPass_t pass,
           const Median& seconds);
  std::size_t samples() const { return samples_; }

  void fit();
  // Notes how many seconds it took to measure this, and why it may be wrong.
  void save(const std::string& path, double seconds, const std::vector<std::string>& doubts);
  void save(const std::string& path) const;
  moecclProfile_t get() const { return profile_.get(); }

 private:
  struct Destroy {
    void operator()(moecclProfile_t profile) const { moecclProfileDestroy(profile); }
  };
  explicit ProfileBuilder(moecclProfile_t profile) : profile_(profile) {}
  void add(moecclCollectiveSample_t sample, const std::string& collective,
           const std::string& algorithm, std::size_t bytes, const Median& seconds);

  std::unique_ptr<moecclProfile, Destroy> profile_;
  std::size_t samples_ = 0;
};

// Throws std::runtime_error where no file can be written at `path`, which `option` has named.
void requireWritable(const char* option, const std::string& path);

}  // namespace moeccl::perf

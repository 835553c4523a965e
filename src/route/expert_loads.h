// How often tokens of this rank chose each expert, and how many rows came to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeccl {

class ExpertLoads {
 public:
  explicit ExpertLoads(int experts) : counts_(static_cast<std::size_t>(experts) + 1, 0) {}

  void add(std::int64_t choices, const std::int32_t* chosen) {
    for (std::int64_t i = 0; i < choices; ++i)
      if (chosen[i] >= 0) ++counts_[static_cast<std::size_t>(chosen[i])];
  }
  void addRows(std::int64_t rows) { counts_.back() += rows; }
  // By expert, and behind them the rows.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  void forget() { std::ranges::fill(counts_, 0); }

 private:
  std::vector<std::int64_t> counts_;
};

}  // namespace moeccl

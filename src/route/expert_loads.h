// How often each expert was chosen by the tokens of this rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeccl {

class ExpertLoads {
 public:
  explicit ExpertLoads(int experts) : counts_(static_cast<std::size_t>(experts), 0) {}

  void add(std::int64_t choices, const std::int32_t* chosen) {
    for (std::int64_t i = 0; i < choices; ++i)
      if (chosen[i] >= 0) ++counts_[static_cast<std::size_t>(chosen[i])];
  }
  // And behind the experts the number of rows.
  std::vector<std::int64_t> with(std::int64_t rows) const {
    std::vector<std::int64_t> all = counts_;
    all.push_back(rows);
    return all;
  }
  void forget() { std::ranges::fill(counts_, 0); }

 private:
  std::vector<std::int64_t> counts_;
};

}  // namespace moeccl

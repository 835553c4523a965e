// Which times of calls cannot be true, by what pairs of ranks can do on the same links.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "perf/fit/sweep.h"

namespace moeccl::perf {

// What was measured is no profile of this cluster; thrown on all ranks at once.
class NoProfile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whose ranks make a call together.
struct GroupSize {
  int ranks;
  int onNode;  // of these, on the node that is looked at
};

class PairLimits {
 public:
  // A call of a pair's all-to-all took so long; `pairs`: that did so at once between two nodes, or
  // 0 for a pair in a node. `bytes`: of a rank's send buffer, of which half goes to the partner.
  void add(int pairs, std::size_t bytes, double seconds);

  // Why a call cannot have taken so long: it took less than half of the fastest pair, or took its
  // bytes out of the node more than twice as fast as pairs ever did. Empty: it can, or pairs did
  // not move as many bytes.
  std::string whyImpossible(std::string_view collective, const GroupSize& group, std::size_t bytes,
                            double seconds) const;

 private:
  double latencyInNode_ = 0, latencyBetween_ = 0;  // the least time of a call; 0: unknown
  // The most bytes that left a node in a second, and at once.
  double rateBetween_ = 0, bytesBetween_ = 0;
};

// All times of a run, held against its pairs.
class Judgement {
 public:
  // With `force` whatever was measured counts.
  explicit Judgement(bool force) : force_(force) {}

  // As PairLimits::add().
  void addPairs(int pairs, const std::vector<Point>& points);
  // Returns what `measure` returns, without the times that cannot be true. Where there are any and
  // `again` is true of the reason, they are measured once more first. `text` says what they are of.
  // `group`: nullptr for pairs, which are held against nothing.
  Swept judge(const std::string& text, const GroupSize* group,
              const std::function<Swept()>& measure,
              const std::function<bool(const std::string&)>& again);
  // Why times cannot be true, one text for each of those that judge() found in the end.
  const std::vector<std::string>& impossible() const { return impossible_; }
  // Throws NoProfile where they are more than a tenth of all times, unless forced.
  void requirePossible() const;

 private:
  // One for each point; "" where it can be true.
  std::vector<std::string> reasons(const std::string& text, const GroupSize* group,
                                   const std::vector<Point>& points) const;

  const bool force_;
  PairLimits limits_;
  std::size_t points_ = 0;
  std::vector<std::string> impossible_;
};

}  // namespace moeccl::perf

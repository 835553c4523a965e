// Which times of calls cannot be true, by what pairs of ranks can do on the same links.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moeccl::perf {

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

}  // namespace moeccl::perf

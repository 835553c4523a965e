// A token route: what ranks tell each other about a routing, and the calls that move its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/routes/plans.h"
#include "moeccl/route.h"
#include "src/comm/communicator.h"
#include "src/route/price.h"

namespace moeccl {

class Telling;

// All of it the same on all ranks.
struct RouteShape {
  routes::Experts experts;
  int choices;  // of a token
  std::int64_t hidden, maxTokens;
  moecclDataType_t datatype, combineDatatype;
  bool weighted;                            // by the library
  const routes::RouteAlgorithm* algorithm;  // nullptr: by price
  std::size_t rowBytes() const;             // of a dispatch
  std::size_t combineRowBytes() const;
};

// The communicator that functions are given is always the same. They throw Error.
class TokenRoute {
 public:
  TokenRoute(const Communicator& communicator, const RouteShape& shape, RoutePrices prices);

  const RouteShape& shape() const { return shape_; }
  int firstExpert() const;
  int localExperts() const;

  // `counts`: how the ranks exchange countBytes() each.
  std::size_t countBytes() const;
  void set(Communicator& communicator, const AlgorithmChoice& counts, std::int64_t tokens,
           const std::int32_t* chosen, const float* weights);
  // After set().
  bool isSet() const { return state_ != nullptr; }
  std::int64_t rows() const;
  const std::vector<std::int64_t>& expertBegins() const;
  std::int64_t tokens() const;
  const routes::RouteAlgorithm& algorithm() const;

  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream);
  void combine(Communicator& communicator, const void* rows, void* output, bool weighted,
               void* stream);
  void combineBackward(Communicator& communicator, const void* outputGradients, const void* rows,
                       void* rowGradients, float* weightGradients, void* stream);

  // Of this rank: its choices of each expert, and the rows that came to it.
  std::vector<std::int64_t> choicesOfExperts;
  std::int64_t rowsSoFar = 0;

 private:
  struct Candidate {
    const routes::RouteAlgorithm* algorithm;
    routes::Way way;
    routes::Paths paths;
    bool relays;  // whether rows go by others: the same on all ranks
  };
  struct State;  // of a routing
  struct Plans;

  const Candidate& choose(Communicator& communicator, const AlgorithmChoice& counts,
                          const routes::Home& home, std::vector<std::int32_t>& entriesFrom,
                          int* chunks);
  // Whether lists of rows are so short at most that nobody needs to know their length before.
  bool tellsAtOnce() const;
  std::vector<routes::RowList> tellRelays(Communicator& communicator, const State& state,
                                          const Telling& telling,
                                          const std::vector<std::int32_t>& entriesFrom) const;
  void countFromRelays(Communicator& communicator, const State& state,
                       std::vector<std::int32_t>& entriesFrom) const;
  std::vector<routes::RowList> hearRelays(Communicator& communicator, const State& state,
                                          const Telling& telling,
                                          const std::vector<std::int32_t>& entriesFrom) const;
  void moveRows(Communicator& communicator, const void* tokens, void* rows, std::size_t rowBytes,
                const char* what, void* stream);

  const RouteShape shape_;
  const int rank_;
  const Topology topology_;
  const RoutePrices prices_;
  std::vector<Candidate> candidates_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Plans> plans_;
};

}  // namespace moeccl

// A question about a layer on the groups that it runs on, by the public API.
#pragma once

#include <cstddef>
#include <string>

#include "moeccl/model.h"
#include "src/base/boundary.h"

namespace moeccl {

// Neither grid nor config is copied.
class LayerQuery {
 public:
  LayerQuery(moecclGrid_t grid, const moecclMoeConfig_t& config) {
    cluster_.grid = grid;
    query_.cluster = &cluster_;
    query_.layer = &config;
    query_.pass = config.training != 0 ? moecclPassBoth : moecclPassForward;
  }
  LayerQuery(const LayerQuery&) = delete;
  LayerQuery& operator=(const LayerQuery&) = delete;

  const moecclQuery_t* get() const { return &query_; }
  // moecclExplain's text. Throws Error.
  std::string explanation() const {
    std::size_t bytes = 0;
    requireSuccess(moecclExplain(get(), nullptr, nullptr, &bytes));
    std::string text(bytes, '\0');
    requireSuccess(moecclExplain(get(), nullptr, text.data(), &bytes));
    text.resize(text.find('\0'));
    return text;
  }

 private:
  moecclCluster_t cluster_ = MOECCL_CLUSTER_INITIALIZER;
  moecclQuery_t query_ = MOECCL_QUERY_INITIALIZER;
};

}  // namespace moeccl

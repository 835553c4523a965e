// Routes on tensors of the host: dispatch and combine, as Python has them.
#pragma once

#include <ATen/ATen.h>
#include <moeccl/route.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "moe.h"

namespace moeccl::torch {

struct RouteOptions {
  int experts, topK;
  int64_t hidden;
  at::ScalarType type;
  moecclRouteWeights_t weights;
  std::string algorithm;
};

class RoutePass;

class Route : public std::enable_shared_from_this<Route> {
 public:
  // Collective over the grid.
  Route(std::shared_ptr<MoeGrid> grid, const RouteOptions& options);
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
  ~Route();

  // Collective: indices int32 [n][k], weights float32 [n][k] or undefined.
  std::shared_ptr<RoutePass> begin(const at::Tensor& indices, const at::Tensor& weights);
  // Instead of it, where this rank cannot: others get the text.
  void tellError(const std::string& text);
  // Until what its passes have going on beside the caller is complete.
  void await();

 private:
  friend class RoutePass;

  const std::shared_ptr<MoeGrid> grid_;
  const RouteOptions options_;
  moecclRoute_t route_ = nullptr;
  moecclStream_t stream_ = nullptr;  // of what goes on beside the caller
  Tensors busy_;                     // with that
  int ranks_ = 0;
  moecclRouteInfo_t info_ = MOECCL_ROUTE_INFO_INITIALIZER;
};

// Ends when nothing needs it, in any thread. Its calls are collective. beside: what they return is
// there once the route's await() returns.
class RoutePass : public KeptPass {
 public:
  RoutePass(std::shared_ptr<Route> route, moecclRoutePass_t pass, int64_t tokens);
  ~RoutePass() override;

  int64_t rows() const { return rows_.rows; }
  std::string algorithm() const { return rows_.algorithm; }
  // [local experts + 1], [local experts][ranks]; float32 [rows] where weights travel, else of none.
  at::Tensor begins() const;
  at::Tensor counts() const;
  at::Tensor rowWeights() const;

  at::Tensor dispatch(const at::Tensor& tokens, bool beside);
  at::Tensor combine(const at::Tensor& results, bool beside);
  // Gradients of results and weights; the second undefined where Combine does not weigh.
  std::pair<at::Tensor, at::Tensor> combineBackward(const at::Tensor& gradient,
                                                    const at::Tensor& results, bool beside);
  // Gradients of tokens and weights; the second undefined where weights do not travel.
  std::pair<at::Tensor, at::Tensor> dispatchBackward(const at::Tensor& gradient,
                                                     const at::Tensor& ofWeights, bool beside);

 private:
  at::Tensor checked(const at::Tensor& tensor, const char* name, int64_t count) const;
  at::Tensor empty(int64_t count) const;
  at::Tensor ofChoices() const;
  void call(const std::function<moecclResult_t()>& made) const;
  // The route's, on which calls that use the tensors go on beside the caller; or none.
  moecclStream_t streamFor(bool beside, const Tensors& used) const;

  const std::shared_ptr<Route> route_;
  const moecclRoutePass_t pass_;
  const int64_t tokens_;
  moecclRows_t rows_ = MOECCL_ROWS_INITIALIZER;
};

}  // namespace moeccl::torch

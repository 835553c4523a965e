// Routes on tensors of the host: dispatch and combine, as Python has them.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <memory>
#include <moeccl/moeccl.hpp>
#include <optional>
#include <string>
#include <utility>

#include "grid.h"

namespace moeccl::torch {

class RoutePass;

class Route : public std::enable_shared_from_this<Route> {
 public:
  // Collective over the grid. type: of tokens and rows, for the config's datatype. Texts of the
  // config are read before this returns.
  Route(std::shared_ptr<MoeGrid> grid, moecclRouteConfig_t config, at::ScalarType type);
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
  ~Route();

  // Collective: indices and weights [n][k]. note: of the pass's ticket.
  std::shared_ptr<RoutePass> begin(const at::Tensor& indices,
                                   const std::optional<at::Tensor>& weights, int64_t note);
  // Instead of it, where this rank cannot: others get the text.
  void tellError(const std::string& text);
  // Until what its passes have going on beside the caller is complete.
  void await();
  // As moecclRouteExplain.
  std::string explain() const;

 private:
  friend class RoutePass;

  const std::shared_ptr<MoeGrid> grid_;
  const int64_t hidden_, choices_;
  const at::ScalarType type_, weightType_;
  const moecclRouteWeights_t weights_;
  const bool rowsByToken_;
  Tensors busy_;  // with what goes on beside the caller; they outlive its stream
  Owned<moecclRoute_t, moecclRouteDestroy> route_;
  Owned<moecclStream_t, moecclStreamDestroy> stream_;
  moecclRouteInfo_t info_ = MOECCL_ROUTE_INFO_INITIALIZER;
};

// Ends when nothing needs it, in any thread. Its calls are collective. beside: what they return is
// there once the route's await() returns.
class RoutePass : public std::enable_shared_from_this<RoutePass> {
 public:
  RoutePass(std::shared_ptr<Route> route, moecclRoutePass_t pass, int64_t tokens, int64_t note);
  RoutePass(const RoutePass&) = delete;
  RoutePass& operator=(const RoutePass&) = delete;
  ~RoutePass();

  // int64 [2], the pass's number and its note. The tensor keeps the pass: where it is saved for the
  // backward pass, whatever drops saved tensors and makes them again (activation checkpointing)
  // does so to the pass.
  at::Tensor ticket();
  // Throws where the ticket's pass is gone.
  static std::shared_ptr<RoutePass> of(const at::Tensor& ticket);
  // How many there are that have tickets.
  static size_t count();

  int64_t rows() const { return rows_.rows; }
  int64_t dropped() const { return rows_.dropped; }
  // Or schedule.
  std::string algorithm() const { return rows_.algorithm; }
  // [local experts + 1], [local experts][ranks]; float32 [rows] where weights travel, else of none.
  // Shapes with rows by token: [2], [1][ranks], [rows][k], and the last [rows][k].
  at::Tensor begins() const;
  at::Tensor counts() const;
  at::Tensor rowWeights() const;
  at::Tensor rowExperts() const;

  at::Tensor dispatch(const at::Tensor& tokens, bool beside);
  at::Tensor combine(const at::Tensor& results, bool beside);
  // Gradients of results and weights; the second [n][0] where Combine does not weigh.
  std::pair<at::Tensor, at::Tensor> combineBackward(const at::Tensor& gradient,
                                                    const at::Tensor& results, bool beside);
  // Gradients of tokens and weights; the second [n][0] where weights do not travel.
  std::pair<at::Tensor, at::Tensor> dispatchBackward(const at::Tensor& gradient,
                                                     const at::Tensor& ofWeights, bool beside);

 private:
  at::Tensor checked(const at::Tensor& tensor, const char* name, int64_t count) const;
  at::Tensor empty(int64_t count) const;
  at::Tensor ofChoices(bool all) const;
  int64_t lists() const;
  // A tensor of one number for each row, or for each of its choices.
  template <typename T>
  at::Tensor ofRows(const T* values) const;
  void call(const std::function<moecclResult_t()>& made) const;
  // The route's, on which calls that use the tensors go on beside the caller; or none.
  moecclStream_t streamFor(bool beside, const Tensors& used) const;

  const std::shared_ptr<Route> route_;
  const Owned<moecclRoutePass_t, moecclPassEnd> pass_;
  const int64_t tokens_;
  std::array<int64_t, 2> ticket_;
  moecclRows_t rows_ = MOECCL_ROWS_INITIALIZER;
};

}  // namespace moeccl::torch

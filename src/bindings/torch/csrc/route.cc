#include "route.h"

namespace moeccl::torch {
namespace {

moecclDataType_t rowTypeOf(at::ScalarType type) {
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
                    "a route is of float32, float16 or bfloat16, not ", type);
  return datatypeOf(type);
}

template <typename T>
const T* dataOf(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? nullptr : tensor.const_data_ptr<T>();
}

}  // namespace

Route::Route(std::shared_ptr<MoeGrid> grid, const RouteOptions& options)
    : grid_(std::move(grid)), options_(options) {
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  config.experts = options.experts;
  config.topK = options.topK;
  config.hidden = options.hidden;
  config.datatype = rowTypeOf(options.type);
  config.weights = options.weights;
  config.algorithm = options.algorithm.c_str();
  grid_->call([&] { return moecclRouteCreate(grid_->grid(), &config, &route_); });
  grid_->call([&] { return moecclRouteGetInfo(route_, &info_); });
  ranks_ = grid_->shape().nEp * grid_->shape().nEsp;
}

Route::~Route() {
  if (!busy_.empty()) moecclStreamSynchronize(stream_);
  moecclStreamDestroy(stream_);
  moecclRouteDestroy(route_);
}

void Route::await() {
  if (busy_.empty()) return;
  grid_->call([&] { return moecclStreamSynchronize(stream_); });
  busy_.clear();
}

std::shared_ptr<RoutePass> Route::begin(const at::Tensor& indices, const at::Tensor& weights) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  const at::Tensor experts = indices.contiguous();
  const at::Tensor factors = weights.defined() ? weights.contiguous() : weights;
  routing.tokens = indices.size(0);
  routing.experts = dataOf<int32_t>(experts);
  if (factors.defined()) routing.weights = dataOf<float>(factors);
  moecclRoutePass_t pass = nullptr;
  grid_->call([&] { return moecclRouteBegin(route_, &routing, nullptr, &pass); });
  return std::make_shared<RoutePass>(shared_from_this(), pass, routing.tokens);
}

void Route::tellError(const std::string& text) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  routing.error = text.c_str();
  moecclRoutePass_t pass = nullptr;
  // Fails, as it should.
  moecclRouteBegin(route_, &routing, nullptr, &pass);
}

RoutePass::RoutePass(std::shared_ptr<Route> route, moecclRoutePass_t pass, int64_t tokens)
    : KeptPass(0), route_(std::move(route)), pass_(pass), tokens_(tokens) {
  call([&] { return moecclPassGetRows(pass_, &rows_); });
}

RoutePass::~RoutePass() { moecclPassEnd(pass_); }

void RoutePass::call(const std::function<moecclResult_t()>& made) const {
  route_->grid_->call(made);
}

moecclStream_t RoutePass::streamFor(bool beside, const Tensors& used) const {
  if (!beside) return nullptr;
  moecclStream_t& stream = route_->stream_;
  if (stream == nullptr) call([&] { return moecclStreamCreate(route_->grid_->comm(), &stream); });
  route_->busy_.insert(route_->busy_.end(), used.begin(), used.end());
  return stream;
}

at::Tensor RoutePass::begins() const {
  return at::from_blob(const_cast<int64_t*>(rows_.begins), {route_->info_.localExperts + 1},
                       at::kLong)
      .clone();
}

at::Tensor RoutePass::counts() const {
  if (route_->info_.localExperts == 0) return at::empty({0, route_->ranks_}, at::kLong);
  return at::from_blob(const_cast<int64_t*>(rows_.counts),
                       {route_->info_.localExperts, route_->ranks_}, at::kLong)
      .clone();
}

at::Tensor RoutePass::rowWeights() const {
  if (rows_.weights == nullptr || rows_.rows == 0) return at::empty({0}, at::kFloat);
  return at::from_blob(const_cast<float*>(rows_.weights), {rows_.rows}, at::kFloat).clone();
}

at::Tensor RoutePass::checked(const at::Tensor& tensor, const char* name, int64_t count) const {
  const int64_t hidden = route_->options_.hidden;
  TORCH_CHECK_VALUE(
      tensor.dim() == 2 && tensor.size(0) == count && tensor.size(1) == hidden && tensor.is_cpu(),
      name, " are ", tensor.sizes(), " on ", tensor.device(), "; they must be [", count, ", ",
      hidden, "] on the CPU");
  return tensor.to(route_->options_.type).resolve_neg().contiguous();
}

at::Tensor RoutePass::empty(int64_t count) const {
  return at::empty({count, route_->options_.hidden},
                   at::TensorOptions().dtype(route_->options_.type));
}

at::Tensor RoutePass::ofChoices() const {
  return at::empty({tokens_, route_->options_.topK}, at::kFloat);
}

at::Tensor RoutePass::dispatch(const at::Tensor& tokens, bool beside) {
  const at::Tensor input = checked(tokens, "tokens", tokens_);
  at::Tensor rows = empty(rows_.rows);
  const moecclStream_t stream = streamFor(beside, {input, rows});
  call([&] { return moecclPassDispatch(pass_, input.const_data_ptr(), rows.data_ptr(), stream); });
  return rows;
}

at::Tensor RoutePass::combine(const at::Tensor& results, bool beside) {
  const at::Tensor input = checked(results, "results", rows_.rows);
  at::Tensor output = empty(tokens_);
  const moecclStream_t stream = streamFor(beside, {input, output});
  call([&] { return moecclPassCombine(pass_, input.const_data_ptr(), output.data_ptr(), stream); });
  return output;
}

std::pair<at::Tensor, at::Tensor> RoutePass::combineBackward(const at::Tensor& gradient,
                                                             const at::Tensor& results,
                                                             bool beside) {
  const bool weighs = route_->options_.weights == moecclRouteWeightsCombine;
  const at::Tensor input = checked(gradient, "gradients of outputs", tokens_);
  const at::Tensor kept = weighs ? checked(results, "results", rows_.rows) : at::Tensor();
  at::Tensor rows = empty(rows_.rows), weights = weighs ? ofChoices() : at::Tensor();
  const moecclStream_t stream = streamFor(beside, {input, kept, rows, weights});
  call([&] {
    return moecclPassCombineBackward(pass_, input.const_data_ptr(),
                                     weighs ? kept.const_data_ptr() : nullptr, rows.data_ptr(),
                                     weighs ? weights.data_ptr<float>() : nullptr, stream);
  });
  return {rows, weights};
}

std::pair<at::Tensor, at::Tensor> RoutePass::dispatchBackward(const at::Tensor& gradient,
                                                              const at::Tensor& ofWeights,
                                                              bool beside) {
  const bool travel = route_->options_.weights == moecclRouteWeightsRows;
  const at::Tensor input = checked(gradient, "gradients of rows", rows_.rows);
  const at::Tensor factors = travel ? ofWeights.to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor tokens = empty(tokens_), weights = travel ? ofChoices() : at::Tensor();
  const moecclStream_t stream = streamFor(beside, {input, factors, tokens, weights});
  call([&] {
    return moecclPassDispatchBackward(
        pass_, input.const_data_ptr(), travel ? factors.const_data_ptr<float>() : nullptr,
        tokens.data_ptr(), travel ? weights.data_ptr<float>() : nullptr, stream);
  });
  return {tokens, weights};
}

}  // namespace moeccl::torch

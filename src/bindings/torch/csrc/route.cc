// Makes routes and their passes; checks tensors, and hands their memory over.
#include "route.h"

#include <mutex>
#include <unordered_map>

namespace moeccl::torch {
namespace {

std::mutex mutex;
std::unordered_map<int64_t, std::weak_ptr<RoutePass>> passes;  // by number
int64_t lastNumber = 0;

template <typename T>
const T* dataOf(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? nullptr : tensor.const_data_ptr<T>();
}

const void* dataOf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr;
}

at::Tensor plain(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.to(type).resolve_neg().contiguous();
}

}  // namespace

Route::Route(std::shared_ptr<MoeGrid> grid, moecclRouteConfig_t config, at::ScalarType type)
    : grid_(std::move(grid)),
      hidden_(config.hidden),
      choices_(config.topK),
      type_(type),
      weightType_(type == at::kDouble ? at::kDouble : at::kFloat),
      weights_(config.weights),
      rowsByToken_(config.rowsByToken == 1) {
  config.datatype = datatypeOf(type);
  moecclRoute_t route = nullptr;
  grid_->call([&] { return moecclRouteCreate(grid_->grid(), &config, &route); });
  route_.reset(route);
  grid_->call([&] { return moecclRouteGetInfo(route, &info_); });
}

Route::~Route() {
  if (!busy_.empty()) moecclStreamSynchronize(stream_.get());
}

void Route::await() {
  if (busy_.empty()) return;
  grid_->call([&] { return moecclStreamSynchronize(stream_.get()); });
  busy_.clear();
}

std::string Route::explain() const {
  return textOf([&](char* text, size_t* bytes) {
    grid_->call([&] { return moecclRouteExplain(route_.get(), text, bytes); });
  });
}

std::shared_ptr<RoutePass> Route::begin(const at::Tensor& indices,
                                        const std::optional<at::Tensor>& weights, int64_t note) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  const at::Tensor experts = plain(indices, at::kInt);
  const at::Tensor factors = weights ? plain(*weights, weightType_) : at::Tensor();
  routing.tokens = indices.size(0);
  routing.experts = dataOf<int32_t>(experts);
  routing.weights = dataOf(factors);
  moecclRoutePass_t pass = nullptr;
  grid_->call([&] { return moecclRouteBegin(route_.get(), &routing, nullptr, &pass); });
  return std::make_shared<RoutePass>(shared_from_this(), pass, routing.tokens, note);
}

void Route::tellError(const std::string& text) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  routing.error = text.c_str();
  moecclRoutePass_t pass = nullptr;
  // Fails, as it should.
  moecclRouteBegin(route_.get(), &routing, nullptr, &pass);
}

RoutePass::RoutePass(std::shared_ptr<Route> route, moecclRoutePass_t pass, int64_t tokens,
                     int64_t note)
    : route_(std::move(route)), pass_(pass), tokens_(tokens), ticket_{0, note} {
  call([&] { return moecclPassGetRows(pass_.get(), &rows_); });
}

RoutePass::~RoutePass() {
  const std::lock_guard lock(mutex);
  passes.erase(ticket_[0]);
}

at::Tensor RoutePass::ticket() {
  const std::shared_ptr<RoutePass> self = shared_from_this();
  {
    const std::lock_guard lock(mutex);
    if (ticket_[0] == 0) ticket_[0] = ++lastNumber;
    passes.emplace(ticket_[0], self);
  }
  return at::from_blob(
      ticket_.data(), {2}, [self](void*) {}, at::kLong);
}

size_t RoutePass::count() {
  const std::lock_guard lock(mutex);
  return passes.size();
}

std::shared_ptr<RoutePass> RoutePass::of(const at::Tensor& ticket) {
  std::shared_ptr<RoutePass> pass;
  if (ticket.numel() == 2) {
    const std::lock_guard lock(mutex);
    const auto found = passes.find(ticket.const_data_ptr<int64_t>()[0]);
    if (found != passes.end()) pass = found->second.lock();
  }
  TORCH_CHECK(pass != nullptr,
              "what this pass saved for its gradients is gone; hooks on saved tensors may drop and "
              "recompute them, but not move them (torch.autograd.graph.save_on_cpu)");
  return pass;
}

void RoutePass::call(const std::function<moecclResult_t()>& made) const {
  route_->grid_->call(made);
}

moecclStream_t RoutePass::streamFor(bool beside, const Tensors& used) const {
  if (!beside) return nullptr;
  if (route_->stream_ == nullptr) {
    moecclStream_t made = nullptr;
    call([&] { return moecclStreamCreate(route_->grid_->comm(), &made); });
    route_->stream_.reset(made);
  }
  route_->busy_.insert(route_->busy_.end(), used.begin(), used.end());
  return route_->stream_.get();
}

int64_t RoutePass::lists() const { return route_->rowsByToken_ ? 1 : route_->info_.localExperts; }

at::Tensor RoutePass::begins() const {
  return at::from_blob(const_cast<int64_t*>(rows_.begins), {lists() + 1}, at::kLong).clone();
}

at::Tensor RoutePass::counts() const {
  const moecclGridShape_t& shape = route_->grid_->shape();
  const int64_t sizes[] = {lists(), shape.nEp * shape.nEsp};
  if (sizes[0] == 0) return at::empty(sizes, at::kLong);
  return at::from_blob(const_cast<int64_t*>(rows_.counts), sizes, at::kLong).clone();
}

template <typename T>
at::Tensor RoutePass::ofRows(const T* values) const {
  std::vector<int64_t> sizes{values == nullptr ? 0 : rows_.rows};
  if (route_->rowsByToken_) sizes.push_back(route_->choices_);
  const at::ScalarType type = c10::CppTypeToScalarType<T>::value;
  if (sizes[0] == 0) return at::empty(sizes, type);
  return at::from_blob(const_cast<T*>(values), sizes, type).clone();
}

at::Tensor RoutePass::rowWeights() const { return ofRows(rows_.weights); }
at::Tensor RoutePass::rowExperts() const { return ofRows(rows_.experts); }

at::Tensor RoutePass::checked(const at::Tensor& tensor, const char* name, int64_t count) const {
  const int64_t hidden = route_->hidden_;
  TORCH_CHECK_VALUE(
      tensor.dim() == 2 && tensor.size(0) == count && tensor.size(1) == hidden && tensor.is_cpu(),
      name, " are ", tensor.sizes(), " on ", tensor.device(), "; they must be [", count, ", ",
      hidden, "] on the CPU");
  return plain(tensor, route_->type_);
}

at::Tensor RoutePass::empty(int64_t count) const {
  return at::empty({count, route_->hidden_}, route_->type_);
}

at::Tensor RoutePass::ofChoices(bool all) const {
  return at::empty({tokens_, all ? route_->choices_ : 0}, route_->weightType_);
}

at::Tensor RoutePass::dispatch(const at::Tensor& tokens, bool beside) {
  const at::Tensor input = checked(tokens, "tokens", tokens_);
  at::Tensor rows = empty(rows_.rows);
  const moecclStream_t stream = streamFor(beside, {input, rows});
  call([&] {
    return moecclPassDispatch(pass_.get(), input.const_data_ptr(), rows.data_ptr(), stream);
  });
  return rows;
}

at::Tensor RoutePass::combine(const at::Tensor& results, bool beside) {
  const at::Tensor input = checked(results, "results", rows_.rows);
  at::Tensor output = empty(tokens_);
  const moecclStream_t stream = streamFor(beside, {input, output});
  call([&] {
    return moecclPassCombine(pass_.get(), input.const_data_ptr(), output.data_ptr(), stream);
  });
  return output;
}

std::pair<at::Tensor, at::Tensor> RoutePass::combineBackward(const at::Tensor& gradient,
                                                             const at::Tensor& results,
                                                             bool beside) {
  const bool weighs = route_->weights_ == moecclRouteWeightsCombine;
  const at::Tensor input = checked(gradient, "gradients of outputs", tokens_);
  const at::Tensor kept = weighs ? checked(results, "results", rows_.rows) : at::Tensor();
  at::Tensor rows = empty(rows_.rows), weights = ofChoices(weighs);
  const moecclStream_t stream = streamFor(beside, {input, kept, rows, weights});
  call([&] {
    return moecclPassCombineBackward(pass_.get(), input.const_data_ptr(),
                                     weighs ? kept.const_data_ptr() : nullptr, rows.data_ptr(),
                                     weighs ? weights.data_ptr() : nullptr, stream);
  });
  return {rows, weights};
}

std::pair<at::Tensor, at::Tensor> RoutePass::dispatchBackward(const at::Tensor& gradient,
                                                              const at::Tensor& ofWeights,
                                                              bool beside) {
  const bool travel = route_->weights_ == moecclRouteWeightsRows;
  const at::Tensor input = checked(gradient, "gradients of rows", rows_.rows);
  const at::Tensor factors = travel ? plain(ofWeights, at::kFloat) : at::Tensor();
  at::Tensor tokens = empty(tokens_), weights = ofChoices(travel);
  const moecclStream_t stream = streamFor(beside, {input, factors, tokens, weights});
  call([&] {
    return moecclPassDispatchBackward(
        pass_.get(), input.const_data_ptr(), travel ? factors.const_data_ptr<float>() : nullptr,
        tokens.data_ptr(), travel ? weights.data_ptr<float>() : nullptr, stream);
  });
  return {tokens, weights};
}

}  // namespace moeccl::torch

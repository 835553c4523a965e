#include "moe.h"

#include <c10/util/StringUtil.h>
#include <moeccl/model.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "backend.h"
#include "signals.h"
#include "tensors.h"

namespace moeccl::torch {
namespace {

moecclSchedule_t scheduleNamed(const std::string& name) {
  const std::vector<std::string> names = scheduleNames();
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(found != names.end(), "schedule is ", name, "; it must be one of ",
                    c10::Join(", ", names));
  return static_cast<moecclSchedule_t>(found - names.begin());
}

// Wrong arguments are ValueErrors, all else is DistBackendError.
void checkCall(moecclResult_t result, const std::string& where) {
  if (result == moecclInvalidArgument || result == moecclInvalidUsage)
    C10_THROW_ERROR(ValueError, "[" + where + "] " + moecclGetLastError(nullptr));
  check(result, nullptr, where);
}

moecclQuery_t queryOf(const moecclMoeConfig_t& config, const moecclCluster_t& cluster) {
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = config.training ? moecclPassBoth : moecclPassForward;
  return query;
}

std::vector<Choice> choicesOf(const moecclQuery_t& query, const std::string& where) {
  struct Destroy {
    void operator()(moecclChoices_t choices) const { moecclChoicesDestroy(choices); }
  };
  moecclChoices_t found = nullptr;
  int count = 0;
  checkCall(moecclSelect(&query, &found, &count), where);
  const std::unique_ptr<std::remove_pointer_t<moecclChoices_t>, Destroy> owned(found);
  std::vector<Choice> choices;
  for (int i = 0; i < count; ++i) {
    moecclChoice_t one = MOECCL_CHOICE_INITIALIZER;
    checkCall(moecclChoicesGet(found, i, -1, &one), where);
    choices.push_back({one.name, one.seconds, one.communication, one.bytesBetween,
                       std::string(one.source) == "curves"});
  }
  return choices;
}

std::string explained(const moecclQuery_t& query, const std::string& where) {
  size_t bytes = 0;
  checkCall(moecclExplain(&query, nullptr, nullptr, &bytes), where);
  std::string text(bytes, '\0');
  checkCall(moecclExplain(&query, nullptr, text.data(), &bytes), where);
  text.resize(text.find('\0'));
  return text;
}

// Rows of own experts see each token N_MP times under the baseline: the layer refuses gradients.
bool offered(const std::string& schedule, const moecclMoeConfig_t& config, int nMp) {
  return schedule != "baseline" || config.training == 0 || nMp == 1;
}

std::string placeOf(const Backend& backend, const std::vector<int>& ranks) {
  std::string text = "rank " + std::to_string(backend->getRank()) + " in a layer's grid of ranks";
  for (const int rank : ranks) text += ' ' + std::to_string(rank);
  return text;
}

const MoecclBackend& ownBackend(const Backend& backend) {
  const auto* const ours = dynamic_cast<MoecclBackend*>(backend.get());
  TORCH_CHECK(ours != nullptr, "the process group's backend for CPUs is not moeccl");
  return *ours;
}

}  // namespace

moecclDataType_t datatypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return moecclFloat32;
    case at::kDouble:
      return moecclFloat64;
    case at::kHalf:
      return moecclFloat16;
    case at::kBFloat16:
      return moecclBfloat16;
    default:
      TORCH_CHECK_VALUE(false, "tokens are of float32, float64, float16 or bfloat16, not ", type);
  }
}

std::vector<std::string> scheduleNames() {
  std::vector<std::string> names;
  for (int number = 0;; ++number) {
    const char* const name = moecclScheduleName(static_cast<moecclSchedule_t>(number));
    if (name == nullptr) return names;
    names.emplace_back(name);
  }
}

void checkIndices(const at::Tensor& indices, int64_t experts) {
  const at::Tensor all = indices.to(at::kLong).contiguous();
  const int64_t* const begin = all.const_data_ptr<int64_t>();
  const int64_t choices = all.size(1);
  for (int64_t token = 0; token < all.size(0); ++token) {
    const int64_t* const row = begin + token * choices;
    for (int64_t choice = 0; choice < choices; ++choice) {
      const int64_t expert = row[choice];
      TORCH_CHECK_VALUE(expert >= -1 && expert < experts, "token ", token, " has the index ",
                        expert, "; indices must be from 0 to ", experts - 1, ", or -1");
      TORCH_CHECK_VALUE(expert < 0 || std::find(row, row + choice, expert) == row + choice,
                        "token ", token, " has expert ", expert,
                        " twice; the experts of a token must differ");
    }
  }
}

RankSet::RankSet(const Backend& backend, const std::vector<int>& ranks)
    : size_(ranks.size()),
      where_(placeOf(backend, ranks)),
      communicator_(ownBackend(backend).subset(ranks)),
      waits_(static_cast<int>(size_) == backend->getSize() ? ownBackend(backend).waits()
                                                           : nullptr) {
  if (waits_ != nullptr) waits_->watch();
}

std::vector<std::vector<int64_t>> RankSet::gather(const std::vector<int64_t>& numbers,
                                                  const std::string& what) {
  std::vector<int64_t> all(size_ * numbers.size());
  Wait wait(waits_, Wait::Of::layer, what);
  const auto gatherAll = [&] {
    return moecclAllGather(numbers.data(), all.data(), numbers.size(), moecclInt64, comm(),
                           nullptr);
  };
  const moecclResult_t gathered = interruptible(comm(), gatherAll, &wait);
  checkCall(gathered, where_);
  std::vector<std::vector<int64_t>> result;
  for (auto at = all.begin(); at != all.end(); at += static_cast<std::ptrdiff_t>(numbers.size()))
    result.emplace_back(at, at + static_cast<std::ptrdiff_t>(numbers.size()));
  return result;
}

void RankSet::average(const Tensors& tensors) {
  const at::NoGradGuard guard;
  Needs needs;
  const Launch launch = allReduceOf(tensors, c10d::ReduceOp::AVG, &needs);
  checkCall(interruptible(comm(), [&] { return launch(comm(), nullptr); }), where_);
  for (const auto& step : needs.after) step();
}

void RankSet::revoke(const std::string& text) {
  checkCall(moecclCommRevoke(comm(), text.c_str()), where_);
}

void RankSet::broadcast(const Tensors& tensors) {
  const at::NoGradGuard guard;
  Needs needs;
  struct Part {
    void* data;
    size_t bytes;
  };
  std::vector<Part> parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back({output(tensor, true, &needs), tensor.nbytes()});
  const auto broadcastAll =
      eachOf(std::move(parts), [](const Part& part, moecclComm_t comm, moecclStream_t stream) {
        return moecclBroadcast(part.data, part.data, part.bytes, kBytes, 0, comm, stream);
      });
  checkCall(interruptible(comm(), [&] { return broadcastAll(comm(), nullptr); }), where_);
  for (const auto& step : needs.after) step();
}

MoeGrid::MoeGrid(std::shared_ptr<RankSet> ranks, moecclGridShape_t shape)
    : ranks_(std::move(ranks)), shape_(shape) {
  const moecclResult_t made =
      interruptible(comm(), [&] { return moecclGridCreate(comm(), shape, &grid_); });
  checkCall(made, where());
}

MoeGrid::~MoeGrid() {
  // Waits for nobody: the communicator that the grid's are split from is there still.
  if (failed_ || moecclGridDestroy(grid_) != moecclSuccess) moecclGridAbort(grid_);
}

void MoeGrid::call(const std::function<moecclResult_t()>& made) {
  const Interruptible scope(comm());
  const moecclResult_t result = made();
  if (result != moecclSuccess && result != moecclInvalidArgument && result != moecclInvalidUsage)
    fail();
  scope.rethrow();
  checkCall(result, where());
}

moecclMoeConfig_t configOf(const LayerOptions& options) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = options.tokens;
  config.embedding = options.embedding;
  config.hidden = options.hidden;
  config.experts = options.experts;
  config.topK = options.topK;
  config.capacityFactor = options.capacityFactor;
  config.capacityGroups = options.capacityGroups;
  config.dropless = options.capacityFactor == 0 ? 1 : 0;
  config.training = options.training ? 1 : 0;
  config.chunks = 1;
  config.learn = options.learn ? 1 : 0;
  config.datatype = datatypeOf(options.type);
  config.schedule = scheduleNamed(options.schedule);
  return config;
}

MoePass::MoePass(std::shared_ptr<MoeLayer> itsLayer, int64_t itsTokens, int64_t note)
    : KeptPass(note), layer(std::move(itsLayer)), tokens(itsTokens) {}

MoePass::~MoePass() {
  if (handle == nullptr) return;
  // A collector of garbage may do this in any thread, while the layer is at work.
  const std::lock_guard lock(layer->mutex_);
  layer->ended_.push_back(handle);
}

MoeLayer::MoeLayer(std::shared_ptr<MoeGrid> grid, const LayerOptions& options)
    : grid_(std::move(grid)), options_(options) {
  const moecclMoeConfig_t config = configOf(options);
  call([&] { return moecclMoeLayerCreate(grid_->grid(), &config, &layer_); });
}

MoeLayer::~MoeLayer() {
  closeEnded();
  moecclMoeLayerDestroy(layer_);
}

void MoeLayer::call(const std::function<moecclResult_t()>& made) { grid_->call(made); }

void MoeLayer::closeEnded() {
  std::vector<moecclMoePass_t> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const moecclMoePass_t pass : ended) moecclMoePassDestroy(pass);
}

// [n][...] of the caller to [tokens][...] of the layer.
at::Tensor MoeLayer::filled(const at::Tensor& tensor, double with, at::ScalarType type) const {
  const int64_t count = tensor.size(0);
  if (count == options_.tokens) return tensor.to(type).resolve_neg().contiguous();
  at::Tensor all = at::empty({options_.tokens, tensor.size(1)}, tensor.options().dtype(type));
  all.narrow(0, 0, count).copy_(tensor);
  all.narrow(0, count, options_.tokens - count).fill_(with);
  return all;
}

at::Tensor MoeLayer::rowsAt(const MoePass& pass, const void* data) const {
  const int64_t count = pass.rows.begins[options_.experts / grid_->shape().nEp];
  const auto options = at::TensorOptions().dtype(options_.type);
  if (count == 0) return at::empty({0, options_.embedding}, options);
  return at::from_blob(const_cast<void*>(data), {count, options_.embedding}, options);
}

MoeLayer::Begun MoeLayer::begin(const at::Tensor& tokens, const at::Tensor& experts,
                                const at::Tensor& weights, int64_t note) {
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.size(0) <= options_.tokens &&
                        tokens.size(1) == options_.embedding,
                    "tokens are ", tokens.sizes(), "; the layer is for up to ", options_.tokens,
                    " of ", options_.embedding, " elements");
  const std::array<int64_t, 2> wanted = {tokens.size(0), options_.topK};
  TORCH_CHECK_VALUE(
      experts.sizes() == at::IntArrayRef(wanted) && weights.sizes() == at::IntArrayRef(wanted),
      "indices are ", experts.sizes(), " and weights ", weights.sizes(), "; both must be ",
      at::IntArrayRef(wanted), ": [tokens][top_k]");
  closeEnded();
  const at::Tensor input = filled(tokens, 0, options_.type);
  const at::Tensor indices = filled(experts, -1, at::kInt);
  const at::Tensor factors = filled(weights, 0, options_.type);
  moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
  routing.experts = indices.const_data_ptr<int32_t>();
  routing.weights = factors.const_data_ptr();
  const auto pass = std::make_shared<MoePass>(shared_from_this(), tokens.size(0), note);
  call([&] {
    return moecclMoeBegin(layer_, input.const_data_ptr(), &routing, nullptr, &pass->handle,
                          &pass->rows);
  });
  const int64_t localExperts = options_.experts / grid_->shape().nEp;
  const int64_t count = pass->rows.begins[localExperts];
  const auto options = at::TensorOptions().dtype(options_.type);
  Begun begun;
  begun.begins = at::empty({localExperts + 1}, at::kLong);
  std::copy_n(pass->rows.begins, localExperts + 1, begun.begins.mutable_data_ptr<int64_t>());
  begun.ticket = pass->ticket();
  // The rows keep the pass, as the ticket does.
  begun.rows = count == 0 ? at::empty({0, options_.embedding}, options)
                          : at::from_blob(
                                const_cast<void*>(pass->rows.rows), {count, options_.embedding},
                                [pass](void*) {}, options);
  return begun;
}

at::Tensor MoeLayer::end(const at::Tensor& ticket, const Tensors& results) {
  const auto pass = KeptPass::of<MoePass>(ticket);
  MoeLayer& layer = *pass->layer;
  const at::Tensor rows = layer.rowsAt(*pass, pass->rows.results);
  int64_t count = 0;
  for (const at::Tensor& result : results) {
    TORCH_CHECK_VALUE(result.dim() == 2 && result.size(1) == layer.options_.embedding,
                      "experts returned ", result.sizes(), "; it must be rows of ",
                      layer.options_.embedding, " elements");
    count += result.size(0);
  }
  TORCH_CHECK_VALUE(count == rows.size(0), "experts returned ", count, " rows for ", rows.size(0));
  count = 0;
  for (const at::Tensor& result : results) {
    rows.narrow(0, count, result.size(0)).copy_(result);
    count += result.size(0);
  }
  at::Tensor output = at::empty({layer.options_.tokens, layer.options_.embedding}, rows.options());
  layer.call([&] { return moecclMoeEnd(pass->handle, output.data_ptr(), nullptr); });
  return output.narrow(0, 0, pass->tokens);
}

at::Tensor MoeLayer::endBackward(const at::Tensor& ticket, const at::Tensor& gradient,
                                 double scale) {
  const auto pass = KeptPass::of<MoePass>(ticket);
  MoeLayer& layer = *pass->layer;
  const at::Tensor all = layer.filled(gradient, 0, layer.options_.type);
  layer.call([&] {
    return moecclMoeEndBackward(pass->handle, all.const_data_ptr(), nullptr, &pass->rows);
  });
  // A copy: somebody may hold gradients for longer than the pass leaves them alone.
  return layer.rowsAt(*pass, pass->rows.results) * scale;
}

std::pair<at::Tensor, at::Tensor> MoeLayer::beginBackward(const at::Tensor& ticket,
                                                          const at::Tensor& gradient,
                                                          double scale) {
  const auto pass = KeptPass::of<MoePass>(ticket);
  MoeLayer& layer = *pass->layer;
  const LayerOptions& options = layer.options_;
  const at::Tensor rows = layer.rowsAt(*pass, pass->rows.results);
  if (scale == 1)
    rows.copy_(gradient);
  else
    at::mul_out(const_cast<at::Tensor&>(rows), gradient.to(options.type),
                at::scalar_tensor(scale, at::kDouble));
  at::Tensor tokens = at::empty({options.tokens, options.embedding}, rows.options());
  at::Tensor weights = at::empty({options.tokens, options.topK}, rows.options());
  layer.call([&] {
    return moecclMoeBeginBackward(pass->handle, tokens.data_ptr(), weights.data_ptr(), nullptr);
  });
  return {tokens.narrow(0, 0, pass->tokens), weights.narrow(0, 0, pass->tokens)};
}

std::string MoeLayer::schedule() const {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  checkCall(moecclMoeLayerGetShapes(layer_, &shapes), grid_->where());
  return moecclScheduleName(shapes.schedule);
}

// Which schedule the layer follows, and why.
std::string MoeLayer::answer(const std::vector<Choice>& choices) const {
  const std::string name = schedule();
  std::string text = "The layer follows " + name;
  if (options_.schedule != "auto") return text + ", which was asked for.\n";
  const auto own = std::ranges::find(choices, name, &Choice::schedule);
  if (own == choices.end()) return text + ".\n";
  std::ostringstream numbers;
  numbers.precision(3);
  const auto ms = [&](const Choice& choice) {
    numbers << choice.seconds * 1e3 << (options_.training ? " ms, forward and backward" : " ms");
  };
  if (own != choices.begin()) {
    numbers << ", predicted to take ";
    ms(*own);
    numbers << "; " << choices[0].schedule << " is predicted to take ";
    ms(choices[0]);
    numbers << (options_.learn ? "; what steps took says otherwise.\n" : ".\n");
    return text + numbers.str();
  }
  numbers << ", predicted to be the fastest: ";
  ms(*own);
  if (choices.size() > 1) {
    numbers << ". The next is " << choices[1].schedule << ": ";
    ms(choices[1]);
  }
  return text + numbers.str() + ".\n";
}

std::string MoeLayer::explain() const {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid_->grid();
  const moecclMoeConfig_t config = configOf(options_);
  const moecclQuery_t query = queryOf(config, cluster);
  std::vector<Choice> choices = choicesOf(query, grid_->where());
  std::erase_if(choices, [&](const Choice& choice) {
    return !offered(choice.schedule, config, grid_->shape().nMp);
  });
  std::string text = answer(choices) + explained(query, grid_->where());
  if (!options_.learn) return text;
  size_t bytes = 0;
  checkCall(moecclMoeLayerExplainChoice(layer_, nullptr, &bytes), grid_->where());
  std::string learned(bytes, '\0');
  checkCall(moecclMoeLayerExplainChoice(layer_, learned.data(), &bytes), grid_->where());
  learned.pop_back();
  return text + learned;
}

Prediction predict(const LayerOptions& options, moecclGridShape_t shape,
                   const std::vector<int>& ranksPerNode, const std::string& profile) {
  struct Destroy {
    void operator()(moecclProfile_t it) const { moecclProfileDestroy(it); }
  };
  const std::string where = "select";
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = static_cast<int>(ranksPerNode.size());
  cluster.ranksPerNode = ranksPerNode.data();
  cluster.shape = shape;
  std::unique_ptr<std::remove_pointer_t<moecclProfile_t>, Destroy> loaded;
  if (!profile.empty()) {
    checkCall(moecclProfileLoad(profile.c_str(), &cluster.profile), where);
    loaded.reset(cluster.profile);
  }
  const moecclMoeConfig_t config = configOf(options);
  const moecclQuery_t query = queryOf(config, cluster);
  Prediction prediction{choicesOf(query, where), explained(query, where)};
  std::erase_if(prediction.choices,
                [&](const Choice& choice) { return !offered(choice.schedule, config, shape.nMp); });
  return prediction;
}

}  // namespace moeccl::torch

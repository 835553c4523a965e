// Makes grids, calls the library on them, and asks it which schedules suit.
#include "grid.h"

#include <algorithm>
#include <moeccl/moeccl.hpp>

#include "backend.h"
#include "signals.h"
#include "tensors.h"

namespace moeccl::torch {
namespace {

// Wrong arguments are ValueErrors, all else is DistBackendError.
void checkCall(moecclResult_t result, const std::string& where) {
  if (result == moecclInvalidArgument || result == moecclInvalidUsage)
    C10_THROW_ERROR(ValueError, "[" + where + "] " + moecclGetLastError(nullptr));
  check(result, nullptr, where);
}

std::vector<Choice> choicesOf(const moecclQuery_t& query, const std::string& where) {
  moecclChoices_t found = nullptr;
  int count = 0;
  checkCall(moecclSelect(&query, &found, &count), where);
  const Owned<moecclChoices_t, moecclChoicesDestroy> owned(found);
  std::vector<Choice> choices;
  for (int i = 0; i < count; ++i) {
    moecclChoice_t one = MOECCL_CHOICE_INITIALIZER;
    checkCall(moecclChoicesGet(found, i, -1, &one), where);
    if (query.layer != nullptr && one.automatic == 0) continue;  // a route refuses its gradients
    choices.push_back({one.name, one.seconds, one.communication, one.bytesBetween,
                       std::string(one.source) == "curves"});
  }
  return choices;
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

moecclDataType_t wireOf(at::ScalarType type) {
  TORCH_CHECK_VALUE(type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2,
                    "wire must be float8_e4m3fn or float8_e5m2, not ", type);
  return type == at::kFloat8_e4m3fn ? moecclFloat8e4m3 : moecclFloat8e5m2;
}

std::vector<std::string> scheduleNames() {
  std::vector<std::string> names;
  for (int number = 0;; ++number) {
    const char* const name = moecclScheduleName(static_cast<moecclSchedule_t>(number));
    if (name == nullptr) return names;
    names.emplace_back(name);
  }
}

void checkIndices(const at::Tensor& indices, int64_t experts, bool repeated) {
  const at::Tensor all = indices.to(at::kLong).contiguous();
  const int64_t* const begin = all.const_data_ptr<int64_t>();
  const int64_t choices = all.size(1);
  for (int64_t token = 0; token < all.size(0); ++token) {
    const int64_t* const row = begin + token * choices;
    for (int64_t choice = 0; choice < choices; ++choice) {
      const int64_t expert = row[choice];
      TORCH_CHECK_VALUE(expert >= -1 && expert < experts, "token ", token, " has the index ",
                        expert, "; indices must be from 0 to ", experts - 1, ", or -1");
      TORCH_CHECK_VALUE(
          repeated || expert < 0 || std::find(row, row + choice, expert) == row + choice, "token ",
          token, " has expert ", expert, " twice; the experts of a token must differ");
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

Prediction predict(moecclQuery_t query, moecclGridShape_t shape,
                   const std::vector<int>& ranksPerNode, const std::string& profile) {
  const std::string where = "select";
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = static_cast<int>(ranksPerNode.size());
  cluster.ranksPerNode = ranksPerNode.data();
  cluster.shape = shape;
  Owned<moecclProfile_t, moecclProfileDestroy> loaded;
  if (!profile.empty()) {
    checkCall(moecclProfileLoad(profile.c_str(), &cluster.profile), where);
    loaded.reset(cluster.profile);
  }
  query.cluster = &cluster;
  return {choicesOf(query, where), textOf([&](char* text, size_t* bytes) {
            checkCall(moecclExplain(&query, nullptr, text, bytes), where);
          })};
}

}  // namespace moeccl::torch

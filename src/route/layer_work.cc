// Has the layer's gates and residual branch computed, forward and backward, and adds the gradients
// that ranks have summed to the caller's.
#include "src/route/layer_work.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace moeccl {

using schedules::Dim;
using schedules::Step;
using schedules::Table;

namespace {

// Whether a table has the rank's part of its batch, or a chunk of that.
bool isOfPart(const Table& table) {
  return has(table, Dim::partTokens) || has(table, Dim::chunkTokens);
}

// Rows of the experts at a time.
std::int64_t rowsAtOnce(const schedules::Schedule& schedule, const schedules::Sizes& sizes) {
  std::int64_t rows = 0;
  for (const schedules::Phase& phase : schedule.phases) {
    if (phase.kind != schedules::Kind::experts) continue;
    const Table& given = schedule.tables[static_cast<std::size_t>(phase.reads[0])];
    const schedules::Shape& shape = given.shape;
    if (hasRuns(given)) continue;
    rows = std::max(rows, has(given, Dim::keptRows)
                              ? sizes.at(phase.oneByOne ? Dim::tokens : Dim::keptRows)
                              : sizes.elements(std::span(shape).first(shape.size() - 1)));
  }
  return rows;
}

}  // namespace

LayerWork::LayerWork(const Groups& groups, Compute& compute)
    : RowWork(groups, compute, compute.shape(), this), compute_(compute), sums_(compute) {
  std::vector<RowRouter*> all;
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    const int kept = shape().training ? static_cast<int>(ownRouter()) : -1;
    Routers made = compute.routers(routersOfChunk(), gatedTokens(), kept);
    for (const auto& each : made) all.push_back(each.get());
    std::ranges::move(made, std::back_inserter(routers_));
  }
  setRouters(std::move(all));
  compute.reserveRows(rowsAtOnce(forward(), sizes()));
  compute.await(nullptr);  // what has been cleared
}

std::optional<gates::Draw> LayerWork::drawOf(int rank) const {
  if (!shape().training) return std::nullopt;
  return gates::Draw{static_cast<std::uint64_t>(shape().seed), static_cast<std::uint64_t>(step_),
                     static_cast<std::uint64_t>(firstBatch_ + rank / shape().grid.nMp)};
}

Router::Tokens LayerWork::tokensOfStep(const Step& step) const {
  const Table& tokens = step.read(0);
  const std::int64_t parts = isOfPart(tokens) ? groups().mp.ranks : 1;
  return {sizes().firstToken(tokens, groups().mp.rank), tokensOf(tokens),
          shape().groups / parts / shape().chunks, isOfPart(tokens) ? groups().mp.rank : 0};
}

void LayerWork::clearSums(std::int64_t first, std::int64_t parts, moecclStream_t stream) {
  compute_.clear(sums_.row(static_cast<int>(first)),
                 static_cast<std::size_t>(parts * sums_.rowSize()) * sizeof(double), stream);
}

void LayerWork::route(const Step& step) {
  const Table& tokens = step.read(0);
  const Router::Tokens own = tokensOfStep(step);
  // All chunks add to them.
  if (tokens.chunk == 0) clearSums(own.part, isOfPart(tokens) ? 1 : sums_.rowCount(), step.stream);
  if (!ofBatches())
    return gateOf(step.written(0))
        .route(weights_.gate, drawOf(groups().world.rank), own, step.reads[0], &sums_, step.stream);
  const moecclGridShape_t& grid = shape().grid;
  const int position = groups().ep.rank;
  const std::int64_t batch = sizes().paddedTokens(tokens) * shape().embedding;
  for (int shard = 0; shard < groups().esp.ranks; ++shard) {
    const int rank =
        grid.order == moecclOrderEspEp ? position * grid.nEsp + shard : shard * grid.nEp + position;
    gatesOf(step.written(0))[static_cast<std::size_t>(shard)]->route(
        weights_.gate, drawOf(rank), own, compute_.at(step.reads[0], shard * batch),
        shard == groups().esp.rank ? &sums_ : nullptr, step.stream);
  }
}

void LayerWork::gate(const Step& step) {
  route(step);
  const bool lists = std::ranges::any_of(step.schedule.tables,
                                         [](const Table& it) { return has(it, Dim::keptRows); });
  const bool counts = step.writes.size() > 2;
  // On GPUs what a gate sums up of its choices is counted when they are listed.
  const bool routes = compute_.onStreams() &&
                      std::ranges::any_of(step.schedule.phases, [](const schedules::Phase& phase) {
                        return phase.kind == schedules::Kind::route;
                      });
  if (!counts && !lists && !routes) return;
  ExpertCounts all;
  if (counts) {
    const std::int64_t local = shape().localExperts;
    all = {static_cast<std::int64_t*>(step.writes[2]), local, local * batchesOf(step.written(2))};
  }
  // The routers of other chunks have lists of their own.
  compute_.list(gatesOf(step.written(0)), all, beginsOf(step.written(0)), step.stream);
  if (!lists) return;
  compute_.await(step.stream);
  setKept();
}

void LayerWork::gateBackward(const Step& step) {
  GateGradients gradients = gradients_.gate;
  if (void* const part = step.writes[1]; part != nullptr) {
    const std::int64_t matrix = shape().embedding * shape().experts;
    const bool noisy = shape().gate.kind == gates::Kind::noisy;
    gradients = {part, noisy ? compute_.at(part, matrix) : nullptr};
    if (step.first[1]) compute_.zero(part, noisy ? 2 * matrix : matrix, step.stream);
  }
  gateOf(step.read(1))
      .gateBackward(weights_.gate, step.reads[0], sumGradients_, gradients, step.writes[0],
                    step.stream);
}

void LayerWork::residual(const Step& step) {
  compute_.residualForward(weights_.residual, tokensOf(step.read(0)), step.reads[0], step.writes[0],
                           step.stream);
}

std::array<std::int64_t, 5> LayerWork::residualBegins() const {
  const std::int64_t embedding = shape().embedding, hidden = shape().residual;
  const std::int64_t inner = shape().innerOf(hidden);
  const std::int64_t b1 = embedding * inner, w2 = b1 + inner, b2 = w2 + hidden * embedding;
  return {0, b1, w2, b2, b2 + embedding};
}

void LayerWork::residualBackward(const Step& step) {
  const std::int64_t tokens = tokensOf(step.read(0));
  compute_.copy(step.writes[0], step.reads[0], tokens * shape().embedding, step.stream);
  MlpGradients gradients = gradients_.residual;
  if (void* const part = step.writes[1]; part != nullptr) {
    const auto begins = residualBegins();
    gradients = {part, compute_.at(part, begins[1]), compute_.at(part, begins[2]),
                 compute_.at(part, begins[3])};
    if (step.first[1]) compute_.zero(part, begins[4], step.stream);
  }
  compute_.residualBackward(weights_.residual, gradients, tokens, step.reads[1], step.writes[0],
                            step.stream);
}

void LayerWork::addGradients(Dim which, const void* gradients, moecclStream_t stream) {
  const auto add = [&](void* sums, std::int64_t begin, std::int64_t count) {
    if (sums != nullptr) compute_.add(sums, compute_.at(gradients, begin), count, stream);
  };
  if (which == Dim::gateWeights) {
    const std::int64_t matrix = shape().embedding * shape().experts;
    add(gradients_.gate.gate, 0, matrix);
    add(gradients_.gate.noise, matrix, matrix);
    return;
  }
  const auto begins = residualBegins();
  const MlpGradients& its = gradients_.residual;
  void* const all[] = {its.w1, its.b1, its.w2, its.b2};
  for (std::size_t i = 0; i < std::size(all); ++i)
    add(all[i], begins[i], begins[i + 1] - begins[i]);
}

}  // namespace moeccl

#include "src/route/layer_work.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace moeccl {

using schedules::Dim;
using schedules::Step;
using schedules::Table;

namespace {

bool has(const Table& table, Dim dim) { return std::ranges::count(table.shape, dim) > 0; }
bool isRuns(const Table& table) { return std::ranges::any_of(table.shape, schedules::boundLate); }
// Of the rank's part of its batch, or a chunk of that.
bool isOfPart(const Table& table) {
  return has(table, Dim::partTokens) || has(table, Dim::chunkTokens);
}

}  // namespace

LayerWork::LayerWork(const Groups& groups, Compute& compute, const schedules::Schedule& forward,
                     bool keeps)
    : compute_(compute),
      shape_(compute.shape()),
      sizes_(sizesOf(shape_, forward)),
      groups_(groups),
      ofBatches_(false),
      sums_(compute),
      keptBegins_(static_cast<std::size_t>(shape_.localExperts) + 1) {
  for (const schedules::Phase& phase : forward.phases) {
    if (phase.kind != schedules::Kind::gate) continue;
    const Table& tokens = forward.tables[static_cast<std::size_t>(phase.reads[0])];
    ofBatches_ = tokens.shape.front() == Dim::esp;
    Routers made = compute.routers(ofBatches_ ? groups.esp.ranks : 1, sizes_.paddedTokens(tokens),
                                   !keeps       ? -1
                                   : ofBatches_ ? groups.esp.rank
                                                : 0);
    std::ranges::move(made, std::back_inserter(routers_));
  }
  begins_.resize(routers_.size());
}

std::optional<gates::Draw> LayerWork::drawOf(int rank) const {
  if (!shape_.training) return std::nullopt;
  return gates::Draw{static_cast<std::uint64_t>(shape_.seed), static_cast<std::uint64_t>(step_),
                     static_cast<std::uint64_t>(firstBatch_ + rank / shape_.grid.nMp)};
}

std::span<std::unique_ptr<Router>> LayerWork::routersOf(const Table& table) {
  return ofChunk(std::span(routers_), table);
}

std::span<const std::int64_t*> LayerWork::beginsOf(const Table& table) {
  return ofChunk(std::span(begins_), table);
}

Router& LayerWork::routerOf(const Table& routing) {
  return *routersOf(routing)[static_cast<std::size_t>(ofBatches_ ? groups_.esp.rank : 0)];
}

std::int64_t LayerWork::tokensOf(const Table& table) const {
  return sizes_.tokensOf(table, groups_.mp.rank);
}

Router::Tokens LayerWork::tokensOf(const Step& step) const {
  const Table& tokens = step.read(0);
  const std::int64_t parts = isOfPart(tokens) ? groups_.mp.ranks : 1;
  return {sizes_.firstToken(tokens, groups_.mp.rank), tokensOf(tokens),
          shape_.groups / parts / shape_.chunks, isOfPart(tokens) ? groups_.mp.rank : 0};
}

void LayerWork::clearSums(std::int64_t first, std::int64_t parts, moecclStream_t stream) {
  compute_.clear(sums_.row(static_cast<int>(first)),
                 static_cast<std::size_t>(parts * sums_.rowSize()) * sizeof(double), stream);
}

void LayerWork::route(const Step& step) {
  const Table& tokens = step.read(0);
  const Router::Tokens own = tokensOf(step);
  // All chunks add to them.
  if (tokens.chunk == 0) clearSums(own.part, isOfPart(tokens) ? 1 : sums_.rowCount(), step.stream);
  if (!ofBatches_)
    return routerOf(step.written(0))
        .route(weights_.gate, drawOf(groups_.world.rank), own, step.reads[0], &sums_, step.stream);
  const moecclGridShape_t& grid = shape_.grid;
  const int position = groups_.ep.rank;
  const std::int64_t batch = sizes_.paddedTokens(tokens) * shape_.embedding;
  for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
    const int rank =
        grid.order == moecclOrderEspEp ? position * grid.nEsp + shard : shard * grid.nEp + position;
    routersOf(step.written(0))[static_cast<std::size_t>(shard)]->route(
        weights_.gate, drawOf(rank), own, compute_.at(step.reads[0], shard * batch),
        shard == groups_.esp.rank ? &sums_ : nullptr, step.stream);
  }
}

// Counts are [N_EP][E_local], or of all batches [N_EP][N_ESP][E_local].
int LayerWork::batchesOf(const Table& table) const {
  return has(table, Dim::esp) ? groups_.esp.ranks : 1;
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
    const std::int64_t local = shape_.localExperts;
    all = {static_cast<std::int64_t*>(step.writes[2]), local, local * batchesOf(step.written(2))};
  }
  // The routers of other chunks have lists of their own.
  compute_.list(routersOf(step.written(0)), all, beginsOf(step.written(0)), step.stream);
  if (!lists) return;
  compute_.await(step.stream);
  setKept();
}

void LayerWork::readCounts(const Table& table, std::span<std::int64_t> counts) {
  const int batches = batchesOf(table);
  std::size_t at = 0;
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    for (int batch = 0; batch < batches; ++batch)
      for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
        const std::int64_t* const run =
            beginsOf(table)[static_cast<std::size_t>(batch)] + ep * shape_.localExperts + expert;
        counts[at++] = run[1] - run[0];
      }
}

schedules::Chosen LayerWork::chosen(const Table& routing) { return routerOf(routing).chosen(); }

void LayerWork::setWeightGradients(const Table& routing, const float* from, void* to,
                                   moecclStream_t stream) {
  routerOf(routing).setWeightGradients(from, to, stream);
}

void LayerWork::setKept() {
  const std::int64_t* const first = begins_[0] + groups_.ep.rank * shape_.localExperts;
  for (std::size_t i = 0; i < keptBegins_.size(); ++i) keptBegins_[i] = first[i] - first[0];
}

Router::Listed LayerWork::listed(const Step& step, Router& router) const {
  const auto index = static_cast<std::size_t>(
      std::ranges::find(routers_, &router, &std::unique_ptr<Router>::get) - routers_.begin());
  const std::int64_t* const begins = begins_[index];
  const Table& rows = has(step.written(0), Dim::keptRows) ? step.written(0) : step.read(0);
  if (!has(rows, Dim::keptRows)) return {begins[0], begins[shape_.experts] - begins[0]};
  const std::int64_t* const own = begins + groups_.ep.rank * shape_.localExperts;
  if (step.expert < 0) return {own[0], own[shape_.localExperts] - own[0]};
  return {own[step.expert], own[step.expert + 1] - own[step.expert]};
}

std::int64_t LayerWork::stride(const Table& rows) const {
  std::int64_t places = 1;
  for (const Dim dim : rows.shape)
    places *= dim == Dim::mp           ? shape_.grid.nMp
              : dim == Dim::esp        ? shape_.grid.nEsp
              : dim == Dim::capacity   ? shape_.capacity()
              : dim == Dim::slots      ? shape_.partSlots()
              : dim == Dim::chunkSlots ? shape_.chunkSlots()
                                       : 1;
  return places;
}

void LayerWork::permute(const Step& step) {
  if (ofBatches_) return permuteBatches(step);
  Router& router = routerOf(step.read(1));
  const Table& rows = step.written(0);
  if (isRuns(rows) || has(rows, Dim::keptRows))
    router.gather(listed(step, router), step.reads[0], step.writes[0], step.stream);
  else
    router.scatter(step.reads[0], stride(rows), step.writes[0], step.stream);
}

// Rows of all batches: places [N_EP][E_local][N_ESP][C], or [N_EP][N_ESP][E_local] runs.
void LayerWork::permuteBatches(const Step& step) {
  const std::int64_t batch = sizes_.paddedTokens(step.read(0)) * shape_.embedding;
  const Table& rows = step.written(0);
  const std::span routers = routersOf(step.read(1));
  const std::span begins = beginsOf(step.read(1));
  const auto each = [&](auto function) {
    for (std::size_t shard = 0; shard < routers.size(); ++shard)
      function(*routers[shard], begins[shard],
               compute_.at(step.reads[0], static_cast<std::int64_t>(shard) * batch),
               static_cast<std::int64_t>(shard));
  };
  if (!isRuns(rows))
    return each([&](Router& router, const std::int64_t*, const void* tokens, std::int64_t shard) {
      const std::int64_t places = shard * shape_.capacity() * shape_.embedding;
      router.scatter(tokens, stride(rows), compute_.at(step.writes[0], places), step.stream);
    });
  std::int64_t at = 0;
  gatherings_.clear();
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    each([&](Router& router, const std::int64_t* first, const void* tokens, std::int64_t) {
      const std::int64_t* const run = first + ep * shape_.localExperts;
      const std::int64_t count = run[shape_.localExperts] - run[0];
      gatherings_.push_back(
          {&router, run[0], count, tokens, compute_.at(step.writes[0], at * shape_.embedding)});
      at += count;
    });
  compute_.gather(gatherings_, step.stream);
}

void LayerWork::combine(const Step& step) {
  Router& router = routerOf(step.read(1));
  const Table& rows = step.read(0);
  void* const tokens = step.writes[0];
  if (!isRuns(rows) && !has(rows, Dim::keptRows))
    return router.combine(step.reads[0], stride(rows), tokens, step.stream);
  if (step.first[0])
    compute_.zero(tokens, tokensOf(step.written(0)) * shape_.embedding, step.stream);
  router.add(listed(step, router), step.reads[0], tokens, step.stream);
}

void LayerWork::combineBackward(const Step& step) {
  Router& router = routerOf(step.read(2));
  const Table& rows = step.read(1);
  if (!isRuns(rows) && !has(rows, Dim::keptRows))
    return router.combineBackward(step.reads[1], step.reads[0], stride(rows), step.writes[0],
                                  step.writes[1], step.stream);
  if (step.first[1])
    compute_.zero(step.writes[1], tokensOf(step.written(1)) * shape_.choices, step.stream);
  router.addBackward(listed(step, router), step.reads[1], step.reads[0], step.writes[0],
                     step.writes[1], step.stream);
}

void LayerWork::permuteBackward(const Step& step) {
  Router& router = routerOf(step.read(1));
  const Table& rows = step.read(0);
  if (!isRuns(rows) && !has(rows, Dim::keptRows))
    return router.scatterBackward(step.reads[0], stride(rows), step.writes[0], step.stream);
  if (step.first[0])
    compute_.zero(step.writes[0], tokensOf(step.written(0)) * shape_.embedding, step.stream);
  router.gatherBackward(listed(step, router), step.reads[0], step.writes[0], step.stream);
}

void LayerWork::gateBackward(const Step& step) {
  GateGradients gradients = gradients_.gate;
  if (void* const part = step.writes[1]; part != nullptr) {
    const std::int64_t matrix = shape_.embedding * shape_.experts;
    const bool noisy = shape_.gate.kind == gates::Kind::noisy;
    gradients = {part, noisy ? compute_.at(part, matrix) : nullptr};
    if (step.first[1]) compute_.zero(part, noisy ? 2 * matrix : matrix, step.stream);
  }
  routerOf(step.read(1))
      .gateBackward(weights_.gate, step.reads[0], sumGradients_, gradients, step.writes[0],
                    step.stream);
}

void LayerWork::residual(const Step& step) {
  compute_.residualForward(weights_.residual, tokensOf(step.read(0)), step.reads[0], step.writes[0],
                           step.stream);
}

MlpGradients LayerWork::residualIn(void* all) const {
  const std::int64_t matrix = shape_.embedding * shape_.residual;
  return {all, compute_.at(all, matrix), compute_.at(all, matrix + shape_.residual),
          compute_.at(all, 2 * matrix + shape_.residual)};
}

void LayerWork::residualBackward(const Step& step) {
  const std::int64_t tokens = tokensOf(step.read(0));
  compute_.copy(step.writes[0], step.reads[0], tokens * shape_.embedding, step.stream);
  MlpGradients gradients = gradients_.residual;
  if (void* const part = step.writes[1]; part != nullptr) {
    gradients = residualIn(part);
    if (step.first[1])
      compute_.zero(part, (2 * shape_.embedding + 1) * shape_.residual + shape_.embedding,
                    step.stream);
  }
  compute_.residualBackward(weights_.residual, gradients, tokens, step.reads[1], step.writes[0],
                            step.stream);
}

void LayerWork::addGradients(Dim which, const void* gradients, moecclStream_t stream) {
  const std::int64_t matrix =
      shape_.embedding * (which == Dim::gateWeights ? shape_.experts : shape_.residual);
  const auto add = [&](void* sums, std::int64_t begin, std::int64_t count) {
    if (sums != nullptr) compute_.add(sums, compute_.at(gradients, begin), count, stream);
  };
  if (which == Dim::gateWeights) {
    add(gradients_.gate.gate, 0, matrix);
    add(gradients_.gate.noise, matrix, matrix);
    return;
  }
  add(gradients_.residual.w1, 0, matrix);
  add(gradients_.residual.b1, matrix, shape_.residual);
  add(gradients_.residual.w2, matrix + shape_.residual, matrix);
  add(gradients_.residual.b2, 2 * matrix + shape_.residual, shape_.embedding);
}

}  // namespace moeccl

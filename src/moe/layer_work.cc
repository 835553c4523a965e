#include "src/moe/layer_work.h"

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

}  // namespace

LayerWork::LayerWork(const Groups& groups, Compute& compute, const schedules::Schedule& forward,
                     bool keeps)
    : compute_(compute),
      shape_(compute.shape()),
      groups_(groups),
      ofBatches_(false),
      sums_(compute),
      keptBegins_(static_cast<std::size_t>(shape_.localExperts) + 1) {
  for (const schedules::Phase& phase : forward.phases) {
    if (phase.kind != schedules::Kind::gate) continue;
    const Table& tokens = forward.tables[static_cast<std::size_t>(phase.reads[0])];
    ofBatches_ = tokens.shape.front() == Dim::esp;
    const bool whole = ofBatches_ || tokens.shape.front() == Dim::tokens;
    Routers made = compute.routers(ofBatches_ ? groups.esp.ranks : 1,
                                   whole ? shape_.paddedTokens() : shape_.chunkTokens(),
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

Router& LayerWork::routerOf(const Table& routing) {
  const int index = ofBatches_                       ? groups_.esp.rank
                    : has(routing, Dim::chunkTokens) ? routing.chunk
                                                     : 0;
  return *routers_[static_cast<std::size_t>(index)];
}

std::int64_t LayerWork::tokensOf(const Table& table) const {
  if (table.shape.front() == Dim::tokens) return shape_.tokens;
  const bool chunk = table.shape.front() == Dim::chunkTokens;
  return std::min(chunk ? shape_.chunkTokens() : shape_.partTokens,
                  shape_.tokens - shape_.firstToken(groups_.mp.rank, chunk ? table.chunk : 0));
}

void LayerWork::route(const Step& step) {
  const Table& tokens = step.read(0);
  const void* const input = step.reads[0];
  const std::int64_t batch = shape_.tokens * shape_.embedding;
  if (ofBatches_) {
    const moecclGridShape_t& grid = shape_.grid;
    const int position = groups_.ep.rank;
    for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
      const int rank = grid.order == moecclOrderEspEp ? position * grid.nEsp + shard
                                                      : shard * grid.nEp + position;
      routers_[static_cast<std::size_t>(shard)]->routeBatch(
          weights_.gate, drawOf(rank), compute_.at(input, shard * batch),
          shard == groups_.esp.rank ? &sums_ : nullptr, step.stream);
    }
  } else if (tokens.shape.front() == Dim::tokens) {
    routers_[0]->routeBatch(weights_.gate, drawOf(groups_.world.rank), input, &sums_, step.stream);
  } else {
    routerOf(step.written(0))
        .routeChunk(weights_.gate, drawOf(groups_.world.rank), input, groups_.mp.rank,
                    has(tokens, Dim::chunkTokens) ? tokens.chunk : 0, sums_, step.stream);
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
  const std::size_t first = ofBatches_ ? 0 : static_cast<std::size_t>(step.written(0).chunk);
  const std::size_t count = ofBatches_ ? routers_.size() : 1;
  compute_.list(std::span(routers_).subspan(first, count), all,
                std::span(begins_).subspan(first, count), step.stream);
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
        const auto router = static_cast<std::size_t>(ofBatches_ ? batch : table.chunk);
        const std::int64_t* const run = begins_[router] + ep * shape_.localExperts + expert;
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
  const std::int64_t batch = shape_.tokens * shape_.embedding;
  const Table& rows = step.written(0);
  const auto each = [&](auto function) {
    for (int shard = 0; shard < groups_.esp.ranks; ++shard)
      function(*routers_[static_cast<std::size_t>(shard)], begins_[static_cast<std::size_t>(shard)],
               compute_.at(step.reads[0], shard * batch), shard);
  };
  if (!isRuns(rows))
    return each([&](Router& router, const std::int64_t*, const void* tokens, int shard) {
      const std::int64_t places = shard * shape_.capacity() * shape_.embedding;
      router.scatter(tokens, stride(rows), compute_.at(step.writes[0], places), step.stream);
    });
  std::int64_t at = 0;
  gatherings_.clear();
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    each([&](Router& router, const std::int64_t* begins, const void* tokens, int) {
      const std::int64_t* const run = begins + ep * shape_.localExperts;
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

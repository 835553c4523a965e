// Moves the rows of a pass by its routers, forward and backward: to places, or to runs by expert.
#include "src/route/row_work.h"

#include <algorithm>
#include <string>

#include "src/model/schedule_terms.h"

namespace moeccl {

using schedules::Dim;
using schedules::Step;
using schedules::Table;

namespace {

schedules::Schedule atOnce(schedules::Schedule schedule) {
  for (schedules::Phase& phase : schedule.phases) phase.oneByOne = false;
  return schedule;
}

// Nobody adds up gradients of a gate that there is not.
schedules::Sizes sizesWith(const OwnWork* own, schedules::Sizes sizes) {
  if (own == nullptr) sizes.at(Dim::gateWeights) = 0;
  return sizes;
}

}  // namespace

moecclStream_t comeBehind(RowCompute& compute, Mark& passed, moecclStream_t stream) {
  if (compute.onStreams()) {
    compute.requireUsable(stream);
    passed.holdUp(stream);
    return stream;
  }
  const moecclResult_t result = moecclStreamSynchronize(stream);
  if (result != moecclSuccess)
    throw Error(result, std::string("the stream's earlier work: ") + moecclGetLastError(nullptr));
  return nullptr;
}

RowWork::RowWork(const Groups& groups, RowCompute& compute, const LayerShape& shape, OwnWork* own)
    : compute_(compute),
      own_(own),
      shape_(shape),
      forward_(scheduleOf(Pass::forward)),
      backward_(shape.training ? std::optional(scheduleOf(Pass::backward)) : std::nullopt),
      sizes_(sizesWith(own, sizesOf(shape, forward_))),
      groups_(groups),
      keptBegins_(static_cast<std::size_t>(shape.localExperts) + 1) {
  for (const schedules::Phase& phase : forward_.phases) {
    if (phase.kind != schedules::Kind::gate) continue;
    const Table& tokens = forward_.tables[static_cast<std::size_t>(phase.reads[0])];
    ofBatches_ = tokens.shape.front() == Dim::esp;
    gatedTokens_ = sizes_.paddedTokens(tokens);
    ++chunks_;
  }
}

schedules::Schedule RowWork::scheduleOf(Pass pass) const {
  const schedules::Schedule& known = valueOf(shape_, pass);
  return own_ == nullptr || compute_.onStreams() ? atOnce(known) : known;
}

void RowWork::setRouters(std::vector<RowRouter*> routers) {
  routers_ = std::move(routers);
  begins_.resize(routers_.size());
}

std::int64_t RowWork::tokensOf(const Table& table) const {
  return sizes_.tokensOf(table, groups_.mp.rank);
}

// Counts are [N_EP][E_local], or of all batches [N_EP][N_ESP][E_local].
int RowWork::batchesOf(const Table& table) const {
  return has(table, Dim::esp) ? groups_.esp.ranks : 1;
}

void RowWork::readCounts(const Table& table, std::span<std::int64_t> counts) {
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

void RowWork::setWeightGradients(const Table& routing, const float* from, void* to,
                                 moecclStream_t stream) {
  routerOf(routing).setWeightGradients(from, to, stream);
}

void RowWork::setKept() {
  const std::int64_t* const first = begins_[0] + groups_.ep.rank * shape_.localExperts;
  for (std::size_t i = 0; i < keptBegins_.size(); ++i) keptBegins_[i] = first[i] - first[0];
}

RowRouter::Listed RowWork::listed(const Step& step, const RowRouter& router) const {
  const auto index =
      static_cast<std::size_t>(std::ranges::find(routers_, &router) - routers_.begin());
  const std::int64_t* const begins = begins_[index];
  const Table& rows = has(step.written(0), Dim::keptRows) ? step.written(0) : step.read(0);
  if (!has(rows, Dim::keptRows)) return {begins[0], begins[shape_.experts] - begins[0]};
  const std::int64_t* const own = begins + groups_.ep.rank * shape_.localExperts;
  if (step.expert < 0) return {own[0], own[shape_.localExperts] - own[0]};
  return {own[step.expert], own[step.expert + 1] - own[step.expert]};
}

std::int64_t RowWork::stride(const Table& rows) const {
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

void RowWork::permute(const Step& step) {
  if (ofBatches_) return permuteBatches(step);
  RowRouter& router = routerOf(step.read(1));
  const Table& rows = step.written(0);
  if (hasRuns(rows) || has(rows, Dim::keptRows))
    router.gather(listed(step, router), step.reads[0], step.writes[0], step.stream);
  else
    router.scatter(step.reads[0], stride(rows), step.writes[0], step.stream);
}

// Rows of all batches: places [N_EP][E_local][N_ESP][C], or [N_EP][N_ESP][E_local] runs.
void RowWork::permuteBatches(const Step& step) {
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
  if (!hasRuns(rows))
    return each(
        [&](RowRouter& router, const std::int64_t*, const void* tokens, std::int64_t shard) {
          const std::int64_t places = shard * shape_.capacity() * shape_.embedding;
          router.scatter(tokens, stride(rows), compute_.at(step.writes[0], places), step.stream);
        });
  std::int64_t at = 0;
  gatherings_.clear();
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    each([&](RowRouter& router, const std::int64_t* first, const void* tokens, std::int64_t) {
      const std::int64_t* const run = first + ep * shape_.localExperts;
      const std::int64_t count = run[shape_.localExperts] - run[0];
      gatherings_.push_back(
          {&router, run[0], count, tokens, compute_.at(step.writes[0], at * shape_.embedding)});
      at += count;
    });
  compute_.gather(gatherings_, step.stream);
}

void RowWork::combine(const Step& step) {
  RowRouter& router = routerOf(step.read(1));
  const Table& rows = step.read(0);
  void* const tokens = step.writes[0];
  if (!hasRuns(rows) && !has(rows, Dim::keptRows))
    return router.combine(step.reads[0], stride(rows), tokens, step.stream);
  if (step.first[0])
    compute_.zero(tokens, tokensOf(step.written(0)) * shape_.embedding, step.stream);
  router.add(listed(step, router), step.reads[0], tokens, step.stream);
}

void RowWork::combineBackward(const Step& step) {
  RowRouter& router = routerOf(step.read(2));
  const Table& rows = step.read(1);
  if (!hasRuns(rows) && !has(rows, Dim::keptRows))
    return router.combineBackward(step.reads[1], step.reads[0], stride(rows), step.writes[0],
                                  step.writes[1], step.stream);
  if (step.first[1])
    compute_.zero(step.writes[1], tokensOf(step.written(1)) * shape_.choices, step.stream);
  router.addBackward(listed(step, router), step.reads[1], step.reads[0], step.writes[0],
                     step.writes[1], step.stream);
}

void RowWork::permuteBackward(const Step& step) {
  RowRouter& router = routerOf(step.read(1));
  const Table& rows = step.read(0);
  if (!hasRuns(rows) && !has(rows, Dim::keptRows))
    return router.scatterBackward(step.reads[0], stride(rows), step.writes[0], step.stream);
  if (step.first[0])
    compute_.zero(step.writes[0], tokensOf(step.written(0)) * shape_.embedding, step.stream);
  router.gatherBackward(listed(step, router), step.reads[0], step.writes[0], step.stream);
}

}  // namespace moeccl

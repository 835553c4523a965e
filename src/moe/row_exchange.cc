#include "src/moe/row_exchange.h"

#include <algorithm>

namespace moeccl {
namespace {

constexpr std::int64_t kCountBytes = sizeof(std::int64_t);

Memory counts(Compute& compute, std::initializer_list<std::int64_t> sizes) {
  return compute.allocate(static_cast<std::size_t>(elementCount(sizes) * kCountBytes));
}

}  // namespace

void RowExchange::Parts::set(int rank, std::int64_t rows, std::int64_t begin,
                             std::int64_t embedding) {
  counts_[rank] = static_cast<std::size_t>(rows * embedding);
  begins_[rank] = static_cast<std::size_t>(begin * embedding);
}

RowExchange::RowExchange(const Groups& groups, Compute& compute, Phases& phases)
    : groups_(groups),
      compute_(compute),
      shape_(compute.shape()),
      phases_(phases),
      ownRuns_(static_cast<std::size_t>(shape_.experts)),
      runs_(static_cast<std::size_t>(elementCount({groups.esp.ranks, shape_.experts}))),
      begins_(runs_.size()),
      expertBegins_(static_cast<std::size_t>(shape_.localExperts) + 1),
      ownParts_(groups.ep.ranks),
      arrivedParts_(groups.ep.ranks),
      groupParts_(groups.ep.ranks),
      groupArrivedParts_(groups.ep.ranks),
      copiedParts_(groups.esp.ranks),
      givenParts_(groups.esp.ranks),
      summandParts_(groups.esp.ranks),
      groupRuns_(runs_.size()),
      sentCounts_(counts(compute, {groups.esp.ranks, shape_.experts})),
      counts_(counts(compute, {groups.esp.ranks, shape_.experts})) {}

void RowExchange::setOwn(const std::int64_t* begins) {
  for (std::int32_t expert = 0; expert < shape_.experts; ++expert)
    ownRuns_[expert] = begins[expert + 1] - begins[expert];
  ownRows_ = begins[shape_.experts];
}

moecclResult_t RowExchange::agree(const std::int64_t* begins, moecclStream_t stream) {
  setOwn(begins);
  groupRows_ = 0;
  const std::size_t bytes = ownRuns_.size() * kCountBytes;
  auto* const arrived =
      static_cast<std::int64_t*>(counts_.get()) + groups_.esp.rank * shape_.experts;
  if (groups_.ep.ranks == 1) {
    compute_.fromHost(arrived, ownRuns_.data(), bytes, stream);
  } else {
    compute_.fromHost(sentCounts_.get(), ownRuns_.data(), bytes, stream);
    const moecclResult_t result =
        moecclAllToAll(sentCounts_.get(), arrived, static_cast<std::size_t>(shape_.localExperts),
                       moecclInt64, groups_.ep.comm, stream);
    if (phases_.noted("EP-AlltoAll of the counts", result) != moecclSuccess) return result;
  }
  if (groups_.esp.ranks > 1) {
    const moecclResult_t result =
        moecclAllGather(arrived, counts_.get(), static_cast<std::size_t>(shape_.experts),
                        moecclInt64, groups_.esp.comm, stream);
    if (phases_.noted("ESP-AllGather of the counts", result) != moecclSuccess) return result;
  }
  compute_.toHost(runs_.data(), counts_.get(), runs_.size() * kCountBytes, stream);
  setParts();
  return moecclSuccess;
}

moecclResult_t RowExchange::agreeOnGroup(const std::vector<const std::int64_t*>& begins,
                                         moecclStream_t stream) {
  const int sources = groups_.ep.ranks, shards = groups_.esp.ranks;
  const std::int64_t local = shape_.localExperts;
  setOwn(begins[groups_.esp.rank]);
  const auto setPart = [&](Parts& parts, int ep, std::int64_t& begin) {
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < shards * local; ++i) rows += groupRuns_[ep * shards * local + i];
    parts.set(ep, rows, begin, shape_.embedding);
    begin += rows;
  };
  std::int64_t sent = 0, received = 0;
  for (int ep = 0; ep < sources; ++ep) {
    for (int esp = 0; esp < shards; ++esp)
      for (std::int64_t expert = 0; expert < local; ++expert) {
        const std::int64_t* const run = begins[esp] + ep * local + expert;
        groupRuns_[(ep * shards + esp) * local + expert] = run[1] - run[0];
      }
    setPart(groupParts_, ep, sent);
  }
  groupRows_ = sent;

  const std::size_t bytes = groupRuns_.size() * kCountBytes;
  compute_.fromHost(sentCounts_.get(), groupRuns_.data(), bytes, stream);
  if (sources > 1) {
    const moecclResult_t result =
        moecclAllToAll(sentCounts_.get(), counts_.get(), static_cast<std::size_t>(shards * local),
                       moecclInt64, groups_.ep.comm, stream);
    if (phases_.noted("EP-AlltoAll of the counts", result) != moecclSuccess) return result;
    compute_.toHost(groupRuns_.data(), counts_.get(), bytes, stream);
  }
  for (int ep = 0; ep < sources; ++ep) {
    for (int esp = 0; esp < shards; ++esp)
      for (std::int64_t expert = 0; expert < local; ++expert)
        runs_[indexOf(esp, ep, expert)] = groupRuns_[(ep * shards + esp) * local + expert];
    setPart(groupArrivedParts_, ep, received);
  }
  setParts();
  return moecclSuccess;
}

void RowExchange::setParts() {
  const std::int64_t embedding = shape_.embedding;
  std::int64_t own = 0, arrivedRows = 0, given = 0;
  for (int ep = 0; ep < groups_.ep.ranks; ++ep) {
    std::int64_t rows = 0, arrivedHere = 0;
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      rows += ownRuns_[ep * shape_.localExperts + expert];
      arrivedHere += run(groups_.esp.rank, ep, expert).count;
    }
    ownParts_.set(ep, rows, own, embedding);
    arrivedParts_.set(ep, arrivedHere, arrivedRows, embedding);
    own += rows;
    arrivedRows += arrivedHere;
  }
  for (int esp = 0; esp < groups_.esp.ranks; ++esp) {
    copiedParts_.set(esp, arrivedRows, 0, embedding);
    givenParts_.set(esp, arrived(esp), given, embedding);
    summandParts_.set(esp, arrivedRows, esp * arrivedRows, embedding);
    given += arrived(esp);
  }
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
    for (int esp = 0; esp < groups_.esp.ranks; ++esp)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep) {
        const std::size_t at = indexOf(esp, ep, expert);
        begins_[at] = begin;
        begin += runs_[at];
      }
    expertBegins_[expert + 1] = begin;
  }
}

std::int64_t RowExchange::arrived(int esp) const {
  const auto first = runs_.begin() + esp * shape_.experts;
  std::int64_t rows = 0;
  for (auto it = first; it != first + shape_.experts; ++it) rows += *it;
  return rows;
}

std::int64_t RowExchange::room() const {
  return std::max({own(), given(), groupRows_, groups_.esp.ranks * arrived(groups_.esp.rank)});
}

moecclResult_t RowExchange::exchange(const char* phase, const Group& group, Places& places,
                                     const Parts& sends, const Parts& receives,
                                     moecclStream_t stream) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclAllToAllv(places.rows(), sends.counts(), sends.begins(), places.spare(),
                      receives.counts(), receives.begins(), shape_.datatype, group.comm, stream);
  places.swap();
  return phases_.noted(phase, result);
}

moecclResult_t RowExchange::startDispatch(Places& places, moecclStream_t stream) {
  const moecclResult_t result =
      exchange("EP-AlltoAllv to the experts", groups_.ep, places, ownParts_, arrivedParts_, stream);
  if (result != moecclSuccess) return result;
  return exchange("ESP-AllGather of the rows", groups_.esp, places, copiedParts_, givenParts_,
                  stream);
}

void RowExchange::finishDispatch(Places& places, moecclStream_t stream) {
  regroup(places, true, stream);
}

moecclResult_t RowExchange::dispatchGroup(Places& places, moecclStream_t stream) {
  const moecclResult_t result = exchange("EP-AlltoAllv to the experts", groups_.ep, places,
                                         groupParts_, groupArrivedParts_, stream);
  if (result != moecclSuccess) return result;
  std::int64_t at = 0;
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    for (int esp = 0; esp < groups_.esp.ranks; ++esp)
      for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
        const Run it = run(esp, ep, expert);
        copyRun(places, it.begin, at, it.count, stream);
        at += it.count;
      }
  places.swap();
  return moecclSuccess;
}

void RowExchange::regroup(Places& places, bool toGiven, moecclStream_t stream) {
  if (shape_.localExperts == 1 || groups_.world.ranks == 1) return;  // they lie alike
  std::int64_t at = 0;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    copyRun(places, toGiven ? begins_[run] : at, toGiven ? at : begins_[run], runs_[run], stream);
    at += runs_[run];
  }
  places.swap();
}

// From rows() to spare().
void RowExchange::copyRun(Places& places, std::int64_t to, std::int64_t from, std::int64_t rows,
                          moecclStream_t stream) {
  if (rows == 0) return;
  compute_.copy(compute_.at(places.spare(), to * shape_.embedding),
                compute_.at(places.rows(), from * shape_.embedding), rows * shape_.embedding,
                stream);
}

moecclResult_t RowExchange::combine(Places& places, moecclStream_t stream) {
  regroup(places, false, stream);
  const moecclResult_t result = exchange("ESP-ReduceScatter of the rows", groups_.esp, places,
                                         givenParts_, summandParts_, stream);
  if (result != moecclSuccess) return result;
  const std::int64_t summand = arrived(groups_.esp.rank) * shape_.embedding;
  for (int esp = 1; esp < groups_.esp.ranks; ++esp)
    compute_.add(places.rows(), compute_.at(places.rows(), esp * summand), summand, stream);
  return giveBack(places, stream);
}

moecclResult_t RowExchange::splitAndCombine(Places& places, moecclStream_t stream) {
  std::int64_t at = 0;
  for (int ep = 0; ep < groups_.ep.ranks; ++ep)
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const Run it = run(groups_.esp.rank, ep, expert);
      copyRun(places, at, it.begin, it.count, stream);
      at += it.count;
    }
  places.swap();
  return giveBack(places, stream);
}

moecclResult_t RowExchange::giveBack(Places& places, moecclStream_t stream) {
  return exchange("EP-AlltoAllv from the experts", groups_.ep, places, arrivedParts_, ownParts_,
                  stream);
}

}  // namespace moeccl

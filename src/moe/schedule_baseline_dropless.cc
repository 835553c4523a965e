// The baseline without capacity: the order of schedule_baseline.cc, with rows instead of places. Every array is
// followed by [embedding], and an expert's rows are as many as its tokens:
//
//   input            [tokens]
//     | ESP-AllGather
//   gathered         [N_ESP][tokens]                      the batches of the ESP group's ranks
//     | gate, each batch by itself; experts are told how many rows they will get
//   rows             [N_EP][N_ESP][E_local] runs          an expert's EP rank comes first
//     | EP-AlltoAllv, regrouped
//                    [E_local][N_ESP][N_EP] runs
//     | experts: partial sums, of the caller's hidden units
//     | ESP-AllReduce
//     | ESP-Split: the caller's own batch of the N_ESP
//                    [N_EP][E_local] runs
//     | EP-AlltoAllv
//                    [E] runs
//     | weighted, added to
//   output           [tokens]
//
// Backward:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | weighted, selected by index; with what experts returned: the weights' gradients
//   rows             [E] runs
//     | dispatch, as RowExchange does it
//                    [E_local][N_ESP][N_EP] runs
//     | experts: their weights' gradients, and partial sums of their inputs'
//     | combine
//                    [E] runs
//     | added to, and the gate's part
//   inputGradient    [tokens]
//
// Of the N_MP copies of a token only the one of the MP group's first rank counts for the weights. Bytes that leave
// a rank, with x = B L M s, where experts have equal loads: (N_ESP - 1) x in the AllGather,
// (1 - 1 / N_EP) N_ESP k x and, back, (1 - 1 / N_EP) k x in the EP-AlltoAllv,
// 2 (1 - 1 / N_ESP) N_ESP k x in the AllReduce; backward (1 - 1 / N_EP) k x and (N_ESP - 1) k x each way.
#include "src/moe/router.h"
#include "src/moe/row_exchange.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class DroplessBaseline final : public Schedule {
 public:
  DroplessBaseline(const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        otherSums_(compute),
        places_(compute),
        exchange_(groups_, compute, *this) {
    for (int shard = 0; shard < groups.esp.ranks; ++shard) {
      const bool own = shard == groups.esp.rank;
      routers_.push_back(compute.router(shape_.paddedTokens(), own && shape_.training));
    }
    if (groups.esp.ranks > 1)
      gathered_ =
          compute.elements(elementCount({groups.esp.ranks, shape_.tokens, shape_.embedding}));
    if (shape_.training) places_.keepForBackward(0);
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    const void* batches = input;
    if (groups_.esp.ranks > 1) {
      const moecclResult_t result =
          moecclAllGather(input, gathered_.get(), static_cast<std::size_t>(batch()),
                          shape_.datatype, groups_.esp.comm, stream);
      if (noted("ESP-AllGather", result) != moecclSuccess) return result;
      batches = gathered_.get();
    }
    moecclResult_t result = route(weights, step, batches, sums, stream);
    if (result != moecclSuccess) return result;
    places_.reserve(exchange_.room(), exchange_.own());
    gatherRows(batches, stream);
    result = exchange_.dispatchGroup(places_, stream);
    if (result != moecclSuccess) return result;
    runExperts(weights, places_, exchange_.expertBegins(), stream);
    result = addShards(stream);
    if (result != moecclSuccess) return result;
    result = exchange_.splitAndCombine(places_, stream);
    if (result != moecclSuccess) return result;
    places_.keepResults(stream);
    compute_.zero(output, batch(), stream);
    mine().add({0, exchange_.own()}, places_.rows(), output, stream);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    const Router::Listed own{0, exchange_.own()};
    mine().addBackward(own, places_.keptResults(), outputGradient, places_.rows(),
                       mine().weightGradients(), stream);
    moecclResult_t result = exchange_.startDispatch(places_, stream);
    if (result != moecclSuccess) return result;
    exchange_.finishDispatch(places_, stream);
    runRunsBackward(weights, gradients, stream);
    result = exchange_.combine(places_, stream);
    if (result != moecclSuccess) return result;
    compute_.zero(inputGradient, batch(), stream);
    mine().gatherBackward(own, places_.rows(), inputGradient, stream);
    mine().gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient, stream);
    return moecclSuccess;
  }

 private:
  std::int64_t batch() const { return shape_.tokens * shape_.embedding; }
  Router& mine() { return *routers_[groups_.esp.rank]; }

  // Gates the batches of the ESP group, each by itself, and agrees on their rows.
  moecclResult_t route(const LayerWeights& weights, std::int64_t step, const void* batches,
                       BatchSums& sums, moecclStream_t stream) {
    begins_.clear();
    for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
      const bool own = shard == groups_.esp.rank;
      routers_[shard]->routeBatch(weights.gate, drawOf(step, worldRank(groups_.ep.rank, shard)),
                                  compute_.at(batches, shard * batch()), own ? sums : otherSums_,
                                  stream);
      begins_.push_back(routers_[shard]->list(stream));
    }
    return exchange_.agreeOnGroup(begins_, stream);
  }

  // places_ = the rows of all batches, [N_EP][N_ESP][E_local] runs.
  void gatherRows(const void* batches, moecclStream_t stream) {
    std::int64_t at = 0;
    for (int ep = 0; ep < groups_.ep.ranks; ++ep)
      for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
        const std::int64_t* const run = begins_[shard] + ep * shape_.localExperts;
        const Router::Listed listed{run[0], run[shape_.localExperts] - run[0]};
        routers_[shard]->gather(listed, compute_.at(batches, shard * batch()),
                                compute_.at(places_.rows(), at * shape_.embedding), stream);
        at += listed.count;
      }
  }

  moecclResult_t addShards(moecclStream_t stream) {
    if (groups_.esp.ranks == 1) return moecclSuccess;
    return allReduce("ESP-AllReduce", groups_.esp, places_.rows(), places_.rows(),
                     exchange_.given() * shape_.embedding, stream);
  }

  // As runExpertsBackward; weights get the gradients of one rank of each MP group.
  void runRunsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                       moecclStream_t stream) {
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      for (int esp = 0; esp < groups_.esp.ranks; ++esp)
        for (int ep = 0; ep < groups_.ep.ranks; ++ep) {
          const bool counts = worldRank(ep, esp) % shape_.grid.nMp == 0;
          const RowExchange::Run run = exchange_.run(esp, ep, expert);
          const std::int64_t begin = run.begin * shape_.embedding;
          const std::int64_t begins[] = {0, run.count};
          compute_.expertBackward(weights, counts ? gradients : LayerGradients{}, {expert, begins},
                                  compute_.at(places_.keptInputs(), begin),
                                  compute_.at(places_.rows(), begin), stream);
        }
  }

  std::vector<std::unique_ptr<Router>> routers_;  // by ESP rank
  BatchSums otherSums_;                           // not looked at
  std::vector<const std::int64_t*> begins_;       // by ESP rank, as the routers' lists say
  Places places_;
  RowExchange exchange_;
  Memory gathered_;  // [N_ESP][tokens][embedding]
};

}  // namespace

std::unique_ptr<Schedule> droplessBaselineSchedule(const Groups& groups, Compute& compute) {
  return std::make_unique<DroplessBaseline>(groups, compute);
}

}  // namespace moeccl

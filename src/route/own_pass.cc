#include "src/route/own_pass.h"

#include <algorithm>
#include <string>

#include "src/model/schedule_list.h"

namespace moeccl {
schedules::Schedule atOnce(schedules::Schedule schedule) {
  for (schedules::Phase& phase : schedule.phases) phase.oneByOne = false;
  return schedule;
}

namespace {

// Nobody adds up gradients of a gate.
schedules::Sizes withoutGate(schedules::Sizes sizes) {
  sizes.at(schedules::Dim::gateWeights) = 0;
  return sizes;
}

}  // namespace

const char* whyNoOwnPasses(const LayerShape& shape) {
  if (shape.residual > 0)
    return "the layer has a residual branch; config.residual must be 0 for passes around own "
           "experts";
  if (shape.gate.kind != gates::Kind::softmax)
    return "config.gate must be moecclGateSoftmax for passes around an own gate";
  if (shape.gate.renormalize)
    return "the weights are the caller's; config.renormalize must be 0 for passes around an own "
           "gate";
  if (shape.training && shape.grid.nMp > 1 && seesCopies(shape.schedule))
    return "under this schedule own experts see each token N_MP times, and add its gradients as "
           "often; config.schedule must be another, or the grid's nMp 1";
  return nullptr;
}

void requireExperts(const LayerShape& shape, const OwnRouting& routing) {
  const std::int64_t choices = shape.tokens * shape.choices;
  const auto wrong = [&](std::int64_t i, const std::string& rule) {
    return Error(moecclInvalidArgument, "routing.experts[" + std::to_string(i) + "] is " +
                                            std::to_string(routing.experts[i]) + "; " + rule);
  };
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int32_t expert = routing.experts[i];
    if (expert < -1 || expert >= shape.experts)
      throw wrong(i, "it must be from 0 to " + std::to_string(shape.experts - 1) + ", or -1");
    const std::int64_t first = i - i % shape.choices;
    if (expert >= 0 &&
        std::find(routing.experts + first, routing.experts + i, expert) != routing.experts + i)
      throw wrong(i, "a token's experts must differ, and token " +
                         std::to_string(i / shape.choices) + " has it before");
  }
}

const char* OwnPass::nextOf(Stage stage) {
  switch (stage) {
    case Stage::begun:
      return "has begun, so moecclMoeEnd comes next";
    case Stage::ended:
      return "has ended, so moecclMoeEndBackward comes next";
    case Stage::endedBackward:
      return "is in its backward half, so moecclMoeBeginBackward comes next";
    default:
      return "has failed; only moecclMoePassDestroy is left";
  }
}

OwnSchedules::OwnSchedules(const schedules::Schedule& layerForward,
                           const schedules::Schedule* layerBackward,
                           const schedules::Sizes& layerSizes, const Groups& groups,
                           Compute& compute)
    : forward(atOnce(layerForward)),
      backward(layerBackward == nullptr ? schedules::Schedule{} : atOnce(*layerBackward)),
      sizes(withoutGate(layerSizes)),
      executor(forward, layerBackward == nullptr ? nullptr : &backward, sizes, groups, compute) {}

OwnWork::OwnWork(const Groups& groups, Compute& compute, const schedules::Schedule& forward)
    : LayerWork(groups, compute, forward, false), shape_(compute.shape()) {
  const auto ranks = static_cast<std::size_t>(groups.mp.ranks);
  for (auto* list : {&sendCounts_, &sendBegins_, &recvCounts_, &recvBegins_}) list->resize(ranks);
  const auto room = [&](std::int64_t batches, std::int64_t bytes) {
    return compute.allocate(
        static_cast<std::size_t>(elementCount({batches, shape_.tokens, shape_.choices}) * bytes));
  };
  experts_ = room(1, sizeof(std::int32_t));
  weights_ = room(1, shape_.elementBytes);
  allExperts_ = room(groups.esp.ranks, sizeof(std::int32_t));
  allWeights_ = room(groups.esp.ranks, shape_.elementBytes);
}

void OwnWork::gather(const void* own, void* all, moecclDataType_t type, moecclStream_t stream) {
  const auto begin = [&](int part) {
    return static_cast<std::size_t>(shape_.firstToken(part) * shape_.choices);
  };
  const int rank = groups().mp.rank;
  for (int part = 0; part < groups().mp.ranks; ++part) {
    const auto at = static_cast<std::size_t>(part);
    const std::int64_t left = shape_.tokens - shape_.firstToken(part);
    recvBegins_[at] = begin(part);
    recvCounts_[at] = static_cast<std::size_t>(std::min(left, shape_.partTokens) * shape_.choices);
    sendBegins_[at] = 0;
  }
  std::ranges::fill(sendCounts_, recvCounts_[static_cast<std::size_t>(rank)]);
  const moecclResult_t result =
      moecclAllToAllv(own, sendCounts_.data(), sendBegins_.data(), all, recvCounts_.data(),
                      recvBegins_.data(), type, groups().mp.comm, stream);
  if (result != moecclSuccess)
    throw schedules::ExchangeError(
        result, std::string("MP-AllGather of the routing: ") + moecclGetLastError(nullptr));
}

void OwnWork::route(const schedules::Step& step) {
  using schedules::Dim;
  const BatchSums& sums = batchSums();
  clearSums(0, sums.rowCount(), step.stream);
  const int rank = groups().mp.rank;
  const std::int64_t first = shape_.firstToken(rank) * shape_.choices;
  const std::int32_t* const ownExperts = routing_.experts + first;
  const void* const ownWeights = compute().at(routing_.weights, first);
  const Dim front = step.read(0).shape.front();
  if (front == Dim::partTokens) {
    const std::int64_t tokens =
        std::min(shape_.partTokens, shape_.tokens - shape_.firstToken(rank));
    return router(0).routeGiven(ownExperts, ownWeights, tokens, shape_.groups / shape_.grid.nMp,
                                sums.row(rank), step.stream);
  }
  const void* experts = routing_.experts;
  const void* weights = routing_.weights;
  if (groups().mp.ranks > 1) {
    gather(ownExperts, experts_.get(), moecclInt32, step.stream);
    gather(ownWeights, weights_.get(), compute().datatype(), step.stream);
    experts = experts_.get();
    weights = weights_.get();
  }
  const std::int64_t batch = shape_.tokens * shape_.choices;
  if (front == Dim::esp && groups().esp.ranks > 1) {
    const auto all = [&](const void* from, void* to, moecclDataType_t type) {
      const moecclResult_t result = moecclAllGather(from, to, static_cast<std::size_t>(batch), type,
                                                    groups().esp.comm, step.stream);
      if (result != moecclSuccess)
        throw schedules::ExchangeError(
            result, std::string("ESP-AllGather of the routing: ") + moecclGetLastError(nullptr));
    };
    all(experts, allExperts_.get(), moecclInt32);
    all(weights, allWeights_.get(), compute().datatype());
    experts = allExperts_.get();
    weights = allWeights_.get();
  }
  for (std::size_t i = 0; i < routers(); ++i) {
    const auto begin = static_cast<std::int64_t>(i) * batch;
    router(i).routeGiven(static_cast<const std::int32_t*>(experts) + begin,
                         compute().at(weights, begin), shape_.tokens, shape_.groups, sums.row(0),
                         step.stream);
  }
}

void OwnWork::gateBackward(const schedules::Step& step) {
  if (step.read(0).shape.front() == schedules::Dim::partTokens && groups().mp.ranks > 1)
    return gather(step.reads[0], weightGradients_, compute().datatype(), step.stream);
  compute().copy(weightGradients_, step.reads[0], shape_.tokens * shape_.choices, step.stream);
}

}  // namespace moeccl

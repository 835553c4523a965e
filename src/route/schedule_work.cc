// Sets a pass's routers to the choices that the caller gives, with places and lists made of them,
// and brings the gradients of their weights back to the caller.
#include "src/route/schedule_work.h"

#include <algorithm>
#include <string>

#include "kernels/capacity.h"
#include "src/base/error.h"
#include "src/route/pass_run.h"

namespace moeccl {

using schedules::Dim;
using schedules::Step;
using schedules::Table;

ScheduleWork::ScheduleWork(const Groups& groups, GivenCompute& compute, const LayerShape& shape)
    : RowWork(groups, compute, shape, nullptr), compute_(compute) {
  for (const schedules::Phase& phase : forward().phases)
    if (phase.kind == schedules::Kind::gate)
      gatesPart_ = has(forward().tables[static_cast<std::size_t>(phase.reads[0])], Dim::partTokens);
  lists_ = shape.dropless || std::ranges::any_of(forward().tables, [](const Table& it) {
             return has(it, Dim::keptRows);
           });
  if (backward() != nullptr)
    for (const schedules::Phase& phase : backward()->phases)
      if (phase.kind == schedules::Kind::combine)
        addsGradients_ = backward()->tables[static_cast<std::size_t>(phase.writes[1])].held.mp ==
                         schedules::State::partial;
  std::vector<RowRouter*> all;
  for (int i = 0; i < routersOfChunk(); ++i) {
    routers_.push_back(
        compute.router({shape.embedding, shape.experts, shape.choices, shape.groupSlots}));
    all.push_back(routers_.back().get());
  }
  tables_.resize(routers_.size());
  setRouters(std::move(all));
  const auto ranks = static_cast<std::size_t>(groups.mp.ranks);
  for (auto* list : {&sendCounts_, &sendBegins_, &recvCounts_, &recvBegins_}) list->resize(ranks);
}

moecclDataType_t ScheduleWork::weightType() const {
  return compute_.datatype() == moecclFloat64 ? moecclFloat64 : moecclFloat32;
}

void ScheduleWork::set(std::vector<Given> given, std::int64_t first, std::int64_t count,
                       moecclStream_t stream) {
  const std::int64_t groups = shape().groups / (gatesPart_ ? shape().grid.nMp : 1);
  const auto experts = static_cast<std::size_t>(shape().experts);
  for (std::size_t i = 0; i < routers_.size(); ++i) {
    Tables& it = tables_[i];
    it.given = std::move(given[i]);
    const GivenChoices& choices = it.given.choices;
    const auto all = static_cast<std::size_t>(choicesOf(choices.tokens));
    RowTables rows{choices.tokens, groups, choices.experts.data(), choices.weights.data()};
    if (!shape().dropless) {
      it.slots.resize(all);
      it.used.resize(static_cast<std::size_t>(groups) * experts);
      assignSlots({shape().experts, shape().choices, it.given.groupTokens, it.given.groupSlots},
                  choices.experts.data(), choices.tokens, groups, it.used.data(), it.slots.data());
      // Messages have the places of the largest.
      const std::int64_t more = shape().groupSlots - it.given.groupSlots;
      for (std::int64_t& slot : it.slots)
        if (slot >= 0 && more > 0) slot += slot / it.given.groupSlots * more;
      rows.slots = it.slots.data();
      rows.used = it.used.data();
    }
    if (lists_) {
      it.begins.resize(experts + 1);
      it.listed.assign(all, -1);
      listByExpert(Choices<float>{rows.experts, rows.slots, nullptr, rows.tokens, shape().choices},
                   shape().experts, it.begins.data(), it.listed.data());
      rows.listed = it.listed.data();
    }
    routers_[i]->set(rows, stream);
    beginsOf({})[i] = it.begins.data();
  }
  if (lists_) setKept();
  const Tables& own = tables_[ownRouter()];
  dropped_ = 0;
  if (shape().dropless) return;
  const std::int64_t begin = choicesOf(gatesPart_ ? 0 : first);
  for (std::int64_t at = begin; at < begin + choicesOf(count); ++at)
    if (const auto i = static_cast<std::size_t>(at);
        own.given.choices.experts[i] >= 0 && own.slots[i] < 0)
      ++dropped_;
}

// The choices are there already: only the counts of rows are told.
void ScheduleWork::gate(const Step& step) {
  if (step.writes.size() < 3 || step.writes[2] == nullptr) return;
  const Table& counts = step.written(2);
  counts_.resize(static_cast<std::size_t>(shape().experts * batchesOf(counts)));
  RowWork::readCounts(counts, counts_);
  compute_.fromHost(step.writes[2], counts_.data(), counts_.size() * sizeof counts_[0],
                    step.stream);
}

void ScheduleWork::setWeightGradients(const Table&, const float* from, void*,
                                      moecclStream_t stream) {
  const std::size_t bytes = static_cast<std::size_t>(ownChoices()) * weightBytes();
  if (bytes > wideRoom_) compute_.grow(wide_, wideRoom_, bytes);
  compute_.copy(wide_.get(), from, static_cast<std::int64_t>(bytes) / compute_.elementBytes(),
                stream);
}

void ScheduleWork::combineBackward(const Step& step) {
  const std::size_t bytes = static_cast<std::size_t>(choicesOf(gatedTokens())) * 8;
  if (bytes > ofRowsRoom_) compute_.grow(ofRows_, ofRowsRoom_, bytes);
  if (bytes > wideRoom_) compute_.grow(wide_, wideRoom_, bytes);
  compute_.clear(ofRows_.get(), bytes, step.stream);
  void* const writes[] = {step.writes[0], ofRows_.get()};
  Step redirected = step;
  redirected.writes = writes;
  RowWork::combineBackward(redirected);
  compute_.widen(ofRows_.get(), ownChoices(), wide_.get(), step.stream);
}

void ScheduleWork::takeWeightGradients(void* weightGradients, moecclStream_t stream) {
  const Group& mp = groups().mp;
  const auto check = [](moecclResult_t result, const char* what) {
    if (result != moecclSuccess)
      throw schedules::ExchangeError(result,
                                     std::string(what) + ": " + moecclGetLastError(nullptr));
  };
  const std::int64_t tokens = shape().tokens;
  if (mp.ranks > 1 && gatesPart_) {
    for (int part = 0; part < mp.ranks; ++part) {
      const auto at = static_cast<std::size_t>(part);
      const std::int64_t first = shape().firstToken(part);
      recvBegins_[at] = static_cast<std::size_t>(choicesOf(first));
      recvCounts_[at] =
          static_cast<std::size_t>(choicesOf(std::min(tokens - first, shape().partTokens)));
      sendBegins_[at] = 0;
    }
    std::ranges::fill(sendCounts_, recvCounts_[static_cast<std::size_t>(mp.rank)]);
    return check(
        moecclAllToAllv(wide_.get(), sendCounts_.data(), sendBegins_.data(), weightGradients,
                        recvCounts_.data(), recvBegins_.data(), weightType(), mp.comm, stream),
        "MP-AllGather of the weights' gradients");
  }
  const std::int64_t count = ownChoices();
  if (mp.ranks > 1 && addsGradients_)
    return check(moecclAllReduce(wide_.get(), weightGradients, static_cast<std::size_t>(count),
                                 weightType(), moecclSum, mp.comm, stream),
                 "AllReduce of the weights' gradients");
  compute_.copy(weightGradients, wide_.get(),
                count * static_cast<std::int64_t>(weightBytes()) / compute_.elementBytes(), stream);
}

}  // namespace moeccl

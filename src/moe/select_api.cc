// Questions of users: which schedule. And what profiles know of layers.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/choice.h"
#include "src/base/boundary.h"
#include "src/base/live_handles.h"
#include "src/base/text.h"
#include "src/moe/moe_handle.h"
#include "src/moe/questions.h"
#include "src/moe/schedule_list.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclScheduleQuery_t> kQuery = {
    "query", "MOECCL_SCHEDULE_QUERY_INITIALIZER", MOECCL_SCHEDULE_QUERY_MAGIC,
    MOECCL_END_OF(moecclScheduleQuery_t, layer), MOECCL_END_OF(moecclScheduleQuery_t, layer)};

constexpr StructKind<moecclLayerSample_t> kLayerSample = {
    "sample", "MOECCL_LAYER_SAMPLE_INITIALIZER", MOECCL_LAYER_SAMPLE_MAGIC,
    MOECCL_END_OF(moecclLayerSample_t, spread), MOECCL_END_OF(moecclLayerSample_t, spread)};

// A caller's question.
struct Asked {
  moecclCluster_t where;
  LayerQuestion question;
};

Asked askedBy(const moecclScheduleQuery_t* query) {
  const moecclScheduleQuery_t theirs = readStruct(kQuery, query);
  const moecclCluster_t where = readStruct(kCluster, theirs.cluster);
  require(where.comm == nullptr || where.grid != nullptr,
          "cluster.comm has no grid, and a schedule needs one; set cluster.grid");
  require(theirs.layer != nullptr, "query.layer is NULL; it must be the layer's config");
  if (theirs.pass < moecclPassForward || theirs.pass > moecclPassBoth)
    throw Error(moecclInvalidArgument,
                stringf("query.pass is %d; it must be moecclPassForward, Backward or Both",
                        static_cast<int>(theirs.pass)));
  const moecclMoeConfig_t layer = readStruct(kMoeConfig, theirs.layer);
  return {where, {layer, theirs.pass, requestedSchedule(layer, std::getenv("MOECCL_SCHEDULE"))}};
}

constexpr moecclGroup_t asGroup(GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return moecclGroupWorld;
    case GroupKind::mp:
      return moecclGroupMp;
    case GroupKind::ep:
      return moecclGroupEp;
    case GroupKind::esp:
      return moecclGroupEsp;
  }
  return moecclGroupWorld;
}

ScheduleAnswer::Exchange answerOf(const LayerModel::ExchangeEstimate& estimate) {
  const Exchange& exchange = estimate.exchange;
  moecclScheduleExchange_t it = MOECCL_SCHEDULE_EXCHANGE_INITIALIZER;
  it.pass = estimate.pass == Pass::forward ? moecclPassForward : moecclPassBackward;
  it.group = asGroup(exchange.group);
  it.phase = exchange.name;
  it.bytes = static_cast<std::size_t>(exchange.bytes);
  it.seconds = estimate.seconds;
  it.calls = exchange.times;
  it.measured = estimate.measured;
  it.digest = estimate.digest;
  if (exchange.routed != Routed::no)
    return {it, exchange.routed == Routed::dispatch ? "tokendispatch" : "tokencombine",
            std::string(estimate.route)};
  return {it, std::string(nameOf(exchange.collective)), textOf(estimate.choice)};
}

ScheduleAnswers answer(LayerModel& model, const Subject& subject) {
  ScheduleAnswers answers;
  for (const LayerModel::Estimate& estimate :
       model.estimates(subject.offered, subject.passes, subject.free)) {
    ScheduleAnswer& one = answers.emplace_back();
    one.choice = MOECCL_SCHEDULE_CHOICE_INITIALIZER;
    one.choice.schedule = estimate.shape.schedule;
    one.choice.seconds = estimate.seconds;
    one.choice.communication = estimate.communication;
    one.choice.bytesBetween = estimate.bytesBetween;
    one.choice.measured = estimate.measured;
    one.choice.chunks = estimate.shape.chunks;
    one.choice.automatic = estimate.automatic;
    one.choice.tokenRouting = estimate.shape.routed ? 1 : 0;
    one.choice.nExchanges = static_cast<int>(estimate.exchanges.size());
    for (const LayerModel::ExchangeEstimate& exchange : estimate.exchanges)
      one.exchanges.push_back(answerOf(exchange));
  }
  return answers;
}

// Runs function(model, subject, the grid's questions or nullptr).
template <typename Function>
void ask(const Asked& asked, Function function) {
  if (asked.where.grid != nullptr) {
    LayerQuestions& questions = questionsOf(asked.where.grid);
    return function(questions.model(), subjectOf(asked.question, groupsOf(asked.where.grid).shape),
                    &questions);
  }
  const Cluster cluster = clusterOf(asked.where);
  requireShape(cluster.shape, cluster.topology.ranks());
  const Subject subject = subjectOf(asked.question, cluster.shape);
  LayerModel model(cluster);
  function(model, subject, static_cast<LayerQuestions*>(nullptr));
}

// A layer on one rank: its local work, in the order of LocalWork.
std::array<double, 7> workOf(const LayerShape& shape) {
  return {static_cast<double>(shape.tokens),
          static_cast<double>(shape.embedding),
          static_cast<double>(shape.localHidden),
          static_cast<double>(gates::logitsPerToken(shape.gate)),
          static_cast<double>(shape.gate.choices),
          static_cast<double>(shape.experts * shape.capacity()),
          static_cast<double>(shape.localExperts)};
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;
using moeccl::require;

moecclResult_t moecclSelectSchedule(const moecclScheduleQuery_t* query,
                                    moecclScheduleChoices_t* choices) {
  return boundary("moecclSelectSchedule", nullptr, [&] {
    require(choices != nullptr, "choices is NULL; pass where to store the choices");
    const moeccl::Asked asked = moeccl::askedBy(query);
    std::shared_ptr<const moeccl::ScheduleAnswers> answers;
    if (asked.where.grid != nullptr)
      answers = moeccl::questionsOf(asked.where.grid).find(asked.question);
    if (answers == nullptr)
      moeccl::ask(asked, [&](auto& model, const auto& subject, auto* questions) {
        answers = std::make_shared<const moeccl::ScheduleAnswers>(moeccl::answer(model, subject));
        if (questions != nullptr) questions->remember(asked.question, answers);
      });
    *choices = new moecclScheduleChoices{std::move(answers)};
  });
}

moecclResult_t moecclExplainSchedule(const moecclScheduleQuery_t* query, char* text,
                                     size_t* bytes) {
  return boundary("moecclExplainSchedule", nullptr, [&] {
    moeccl::requireRoom(text, bytes);
    std::string all;
    moeccl::ask(moeccl::askedBy(query), [&](auto& model, const auto& subject, auto*) {
      all = model.explain(subject.offered, subject.passes, subject.free);
    });
    moeccl::handOut(all, text, bytes);
  });
}

moecclResult_t moecclProfileAddLayer(moecclProfile_t profile, const moecclLayerSample_t* sample) {
  return boundary("moecclProfileAddLayer", nullptr, [&] {
    const auto theirs = moeccl::readStruct(moeccl::kLayerSample, sample);
    require(theirs.layer != nullptr,
            "sample.layer is NULL; it must be the layer that was measured");
    require(theirs.pass == moecclPassForward || theirs.pass == moecclPassBackward,
            "sample.pass must be moecclPassForward or moecclPassBackward");
    moeccl::requireLive(moeccl::HandleKind::layer, theirs.layer);
    const moeccl::MoeLayer& layer = theirs.layer->layer;
    const moeccl::LayerShape& shape = layer.shape();
    require(shape.datatype == moecclFloat32,
            "sample.layer does not compute with moecclFloat32; profiles hold what that takes");
    require(!shape.dropless && shape.residual == 0,
            "sample.layer is dropless or has a residual branch; it must be one whose work follows "
            "from its capacity alone");
    const int ranks = layer.groups().world.ranks;
    if (ranks != 1)
      throw moeccl::Error(moecclInvalidArgument,
                          moeccl::stringf("sample.layer has %d ranks; it must have one, as its "
                                          "sample is of what a rank computes by itself",
                                          ranks));
    const auto work = moeccl::workOf(shape);
    const moecclInternalSample_t ours{theirs.seconds, theirs.spread,
                                      theirs.pass == moecclPassBackward, work.data()};
    moeccl::requireSuccess(moecclInternalAddSample(profile, &ours));
  });
}

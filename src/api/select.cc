// Questions of users: which algorithm, which schedule, and why.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "algorithms/choice.h"
#include "src/api/arguments.h"
#include "src/api/layer_config.h"
#include "src/api/moe_handle.h"
#include "src/api/questions.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclQuery_t> kQuery = {
    "query", "MOECCL_QUERY_INITIALIZER", MOECCL_QUERY_MAGIC, MOECCL_END_OF(moecclQuery_t, pass),
    MOECCL_END_OF(moecclQuery_t, pass)};

// A caller's question, and where it is asked.
struct Asked {
  moecclQuery_t query;
  moecclCluster_t where;

  bool aboutLayer() const { return query.layer != nullptr; }
};

Asked read(const moecclQuery_t* query) {
  const moecclQuery_t theirs = readStruct(kQuery, query);
  const moecclCluster_t where = readStruct(kCluster, theirs.cluster);
  require((theirs.collective == nullptr) != (theirs.layer == nullptr),
          "query.collective and query.layer are both set, or both NULL; one of them must say what "
          "is asked about");
  if (theirs.layer != nullptr) {
    require(where.comm == nullptr || where.grid != nullptr,
            "cluster.comm has no grid, and a schedule needs one; set cluster.grid");
    if (theirs.pass < moecclPassForward || theirs.pass > moecclPassBoth)
      throw Error(moecclInvalidArgument,
                  stringf("query.pass is %d; it must be moecclPassForward, Backward or Both",
                          static_cast<int>(theirs.pass)));
  }
  return {theirs, where};
}

Answers algorithms(const Asked& asked) {
  const Collective which = collectiveOf(asked.query.collective);
  const Cluster ranks = clusterOf(asked.where);
  const double bytes = static_cast<double>(asked.query.bytes);
  AlgorithmChoice given = ranks.fixed[static_cast<std::size_t>(which)];
  if (needsGrid(which)) {
    require(asked.where.comm == nullptr, "cluster.comm has no grid, and the collective needs one");
    requireShape(ranks.shape, ranks.topology.ranks());
    if (asked.query.nExpertsPerRank < 1)
      throw Error(moecclInvalidArgument,
                  stringf("query.nExpertsPerRank is %d; it must be at least 1",
                          asked.query.nExpertsPerRank));
    given.parameters.grid = asGrid(ranks.shape);
    given.parameters.experts = asked.query.nExpertsPerRank;
  }
  // A communicator's own model remembers the candidates and their prices.
  const HeldComm held = heldOf(asked.where);
  std::optional<CostModel> imagined;
  if (held.isNull())
    imagined.emplace(ranks.topology, ranks.profile, ranks.ranksOnNode, ranks.typical,
                     leavesOfAll(ranks.switches, ranks.topology));
  CostModel& model = held.isNull() ? *imagined : *held->model;
  Answers all;
  for (const CostModel::Estimate& estimate : model.estimates(which, given, bytes)) {
    if (!held.isNull() && !communicatorOf(held).serves(estimate.choice)) continue;
    Answer& answer = all.emplace_back();
    answer.name = textOf(estimate.choice);
    answer.it.source = sourceOf(estimate.measured);
    answer.it.seconds = estimate.seconds;
    answer.it.bytesBetween = model.bytesBetween(which, given, estimate.choice, bytes);
    answer.it.digest = model.digest(which, given, estimate.choice);
    const Line line = model.line(which, given, estimate.choice);
    answer.it.alpha = line.alpha;
    answer.it.beta = line.beta;
  }
  return all;
}

constexpr moecclGroup_t asGroup(GroupKind kind) {
  return kind == GroupKind::mp    ? moecclGroupMp
         : kind == GroupKind::ep  ? moecclGroupEp
         : kind == GroupKind::esp ? moecclGroupEsp
                                  : moecclGroupWorld;
}

Answer answerOf(const LayerModel::ExchangeEstimate& estimate) {
  const Exchange& exchange = estimate.exchange;
  Answer answer;
  answer.it.source = sourceOf(estimate.measured);
  answer.it.seconds = estimate.seconds;
  answer.it.bytesBetween = estimate.bytesBetween;
  answer.it.digest = estimate.digest;
  answer.it.calls = exchange.times;
  answer.it.phase = exchange.name;
  answer.it.bytes = static_cast<std::size_t>(exchange.bytes);
  answer.it.group = asGroup(exchange.group);
  answer.it.pass = estimate.pass == Pass::forward ? moecclPassForward : moecclPassBackward;
  const bool routed = exchange.routed != Routed::no;
  answer.name = routed ? std::string(estimate.route) : textOf(estimate.choice);
  answer.collective = !routed ? std::string(nameOf(exchange.collective))
                      : exchange.routed == Routed::dispatch ? "tokendispatch"
                                                            : "tokencombine";
  return answer;
}

Answers schedules(LayerModel& model, const Subject& subject) {
  Answers all;
  for (const LayerModel::Estimate& estimate :
       model.estimates(subject.offered, subject.passes, subject.free)) {
    Answer& answer = all.emplace_back();
    answer.name = nameOf(estimate.shape.schedule);
    answer.it.source = sourceOf(estimate.measured);
    answer.it.seconds = estimate.seconds;
    answer.it.bytesBetween = estimate.bytesBetween;
    answer.it.communication = estimate.communication;
    answer.it.chunks = estimate.shape.chunks;
    answer.it.schedule = estimate.shape.schedule;
    answer.it.tokenRouting = estimate.shape.routed ? 1 : 0;
    answer.it.automatic = estimate.automatic ? 1 : 0;
    answer.it.nExchanges = static_cast<int>(estimate.exchanges.size());
    for (const LayerModel::ExchangeEstimate& exchange : estimate.exchanges)
      answer.exchanges.push_back(answerOf(exchange));
  }
  return all;
}

LayerQuestion questionOf(const Asked& asked) {
  const moecclMoeConfig_t layer = readStruct(kMoeConfig, asked.query.layer);
  return {layer, asked.query.pass, requestedSchedule(layer, std::getenv("MOECCL_SCHEDULE"))};
}

// Returns function(model, subject) about a layer.
template <typename Function>
auto ask(const Asked& asked, const LayerQuestion& question, Function function) {
  if (asked.where.grid != nullptr) {
    LayerQuestions& questions = questionsOf(asked.where.grid);
    return function(questions.model(), subjectOf(question, asked.where.grid->shape));
  }
  const Cluster cluster = clusterOf(asked.where);
  requireShape(cluster.shape, cluster.topology.ranks());
  const Subject subject = subjectOf(question, cluster.shape);
  LayerModel model(cluster);
  return function(model, subject);
}

std::shared_ptr<const Answers> answersTo(const Asked& asked) {
  if (!asked.aboutLayer()) return std::make_shared<const Answers>(algorithms(asked));
  const LayerQuestion question = questionOf(asked);
  const bool there = asked.where.grid != nullptr;
  if (there)
    if (auto known = questionsOf(asked.where.grid).find(question)) return known;
  auto answers = std::make_shared<const Answers>(ask(asked, question, schedules));
  if (there) questionsOf(asked.where.grid).remember(question, answers);
  return answers;
}

std::string algorithmLines(const Answers& answers) {
  std::string text;
  for (const Answer& each : answers)
    text += stringf("%12.3f ms  %-32s %.3e + %.3e * bytes, by %s\n", each.it.seconds * 1e3,
                    each.name.c_str(), each.it.alpha, each.it.beta, each.it.source);
  return text;
}

std::string explain(const Asked& asked, std::string_view format) {
  const std::shared_ptr<const Answers> answers = answersTo(asked);
  if (format == "json") return asJson(*answers);
  if (answers->empty()) return "nothing is offered\n";
  return firstLine((*answers)[0], answers->size() > 1 ? &(*answers)[1] : nullptr) + '\n' +
         (asked.aboutLayer()
              ? ask(asked, questionOf(asked),
                    [](LayerModel& model, const Subject& subject) {
                      return model.explain(subject.offered, subject.passes, subject.free);
                    })
              : algorithmLines(*answers));
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;
using moeccl::require;

moecclResult_t moecclSelect(const moecclQuery_t* query, moecclChoices_t* choices, int* nChoices) {
  return boundary("moecclSelect", nullptr, [&] {
    require(choices != nullptr, "choices is NULL; pass where to store the choices");
    auto answers = moeccl::answersTo(moeccl::read(query));
    if (nChoices != nullptr) *nChoices = static_cast<int>(answers->size());
    *choices = new moecclChoices{std::move(answers)};
  });
}

moecclResult_t moecclExplain(const moecclQuery_t* query, const char* format, char* text,
                             size_t* bytes) {
  return boundary("moecclExplain", nullptr, [&] {
    const std::string_view how = format == nullptr ? "text" : format;
    if (how != "text" && how != "json")
      moeccl::invalid("format is \"" + std::string(how) + "\"; it must be \"text\" or \"json\"");
    moeccl::requireRoom(text, bytes);
    moeccl::handOut(moeccl::explain(moeccl::read(query), how), text, bytes);
  });
}

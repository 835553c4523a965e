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

struct moecclChoices {
  std::shared_ptr<const moeccl::Answers> all;  // which a grid may remember too
};

namespace moeccl {
namespace {

constexpr StructKind<moecclChoice_t> kChoice = {
    "choice", "MOECCL_CHOICE_INITIALIZER", MOECCL_CHOICE_MAGIC, MOECCL_END_OF(moecclChoice_t, pass),
    MOECCL_END_OF(moecclChoice_t, pass)};
constexpr StructKind<moecclQuery_t> kQuery = {
    "query", "MOECCL_QUERY_INITIALIZER", MOECCL_QUERY_MAGIC, MOECCL_END_OF(moecclQuery_t, pass),
    MOECCL_END_OF(moecclQuery_t, pass)};

const Answers& allOf(moecclChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelect made");
  return *choices->all;
}

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
  CostModel& model = held.isNull() ? *imagined : held->model();
  return algorithmAnswers(model, which, given, bytes, [&](const AlgorithmChoice& it) {
    return held.isNull() || communicatorOf(held).serves(it);
  });
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
  auto answers = std::make_shared<const Answers>(ask(asked, question, scheduleAnswers));
  if (there) questionsOf(asked.where.grid).remember(question, answers);
  return answers;
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

moecclResult_t moecclChoicesGet(moecclChoices_t choices, int index, int exchange,
                                moecclChoice_t* choice) {
  return boundary("moecclChoicesGet", nullptr, [&] {
    const moeccl::Answer* answer =
        &moeccl::elementAt(moeccl::allOf(choices), index, "index", "choices");
    if (exchange != -1)
      answer = &moeccl::elementAt(answer->exchanges, exchange, "exchange", "exchanges");
    moecclChoice_t ours = answer->it;
    ours.name = answer->name.c_str();
    if (exchange != -1) ours.collective = answer->collective.c_str();
    writeStruct(moeccl::kChoice, ours, choice);
  });
}

moecclResult_t moecclChoicesDestroy(moecclChoices_t choices) {
  delete choices;
  return moecclSuccess;
}

#include "src/moe/questions.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "algorithms/choice.h"
#include "src/base/boundary.h"
#include "src/moe/schedule_list.h"
#include "src/schedule/groups.h"

namespace moeccl {
namespace {

constexpr std::size_t kMost = 64;  // as many as a model has different layers, and more

// All that may be wrong; what is random costs nothing.
bool sameGate(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.gate == b.gate && a.switchGate.jitter == b.switchGate.jitter &&
         a.noisyTopK.importanceWeight == b.noisyTopK.importanceWeight &&
         a.noisyTopK.loadWeight == b.noisyTopK.loadWeight &&
         a.sigmoid.expertGroups == b.sigmoid.expertGroups &&
         a.sigmoid.topGroups == b.sigmoid.topGroups &&
         a.sigmoid.routingScale == b.sigmoid.routingScale &&
         a.sigmoid.sequenceTokens == b.sigmoid.sequenceTokens;
}

bool same(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.tokens == b.tokens && a.embedding == b.embedding && a.hidden == b.hidden &&
         a.experts == b.experts && a.topK == b.topK && a.capacityFactor == b.capacityFactor &&
         a.capacityGroups == b.capacityGroups && a.chunks == b.chunks &&
         a.activation == b.activation && a.datatype == b.datatype && a.dropless == b.dropless &&
         a.residual == b.residual && a.minCapacity == b.minCapacity &&
         a.tokenRouting == b.tokenRouting && sameGate(a, b);
}

bool same(const LayerQuestion& a, const LayerQuestion& b) {
  return a.pass == b.pass && a.requested == b.requested && same(a.layer, b.layer);
}

// What calls are chosen by, out of libmoeccl's texts.
struct Known {
  FixedAlgorithms fixed{};
  std::shared_ptr<const Profile> profile;

  static void take(void* known, const moecclInternalModel_t* model) {
    Known& it = *static_cast<Known*>(known);
    for (int i = 0; i < model->nAlgorithms; ++i)
      if (const std::string_view text = model->algorithms[i]; text != textOf(AlgorithmChoice{}))
        it.fixed[static_cast<std::size_t>(i)] = readChoice(static_cast<Collective>(i), text);
    if (model->profile != nullptr)
      it.profile = std::make_shared<const Profile>(parseProfile(model->profile));
  }
};

Cluster clusterOf(moecclGrid_t grid, const moecclInternalGrid_t& it) {
  const Groups groups = groupsOf(grid);
  std::vector<int> nodes(static_cast<std::size_t>(groups.world.ranks));
  for (int rank = 0; rank < groups.world.ranks; ++rank)
    requireSuccess(
        moecclCommNodeOfRank(groups.world.comm, rank, &nodes[static_cast<std::size_t>(rank)]));
  Known known;
  requireSuccess(moecclInternalModel(grid, nullptr, &Known::take, &known));
  return {Topology(nodes), groups.shape,        known.fixed,       std::move(known.profile),
          it.ranksOnNode,  typicalOf(it.links), it.background != 0};
}

}  // namespace

Subject subjectOf(const LayerQuestion& question, const moecclGridShape_t& grid) {
  const LayerShape shape = layerShape(question.layer, moecclScheduleAuto, grid);
  Subject subject{{}, {}, {question.layer.chunks == 0, question.layer.tokenRouting == 0}};
  if (question.pass & moecclPassForward) subject.passes.push_back(Pass::forward);
  if (question.pass & moecclPassBackward) subject.passes.push_back(Pass::backward);
  for (int number = 1; number < scheduleNumbers(); ++number) {
    const auto schedule = static_cast<moecclSchedule_t>(number);
    const bool wanted = question.requested == moecclScheduleAuto || question.requested == schedule;
    // What it cannot have is refused, chosen or not.
    if (wanted && offers(schedule, shape))
      subject.offered.push_back(layerShape(question.layer, schedule, grid));
  }
  if (subject.offered.empty()) layerShape(question.layer, question.requested, grid);  // says why
  return subject;
}

std::shared_ptr<const ScheduleAnswers> LayerQuestions::find(const LayerQuestion& question) const {
  const auto known = std::ranges::find_if(
      answers_, [&](const Answer& answer) { return same(answer.question, question); });
  return known == answers_.end() ? nullptr : known->answers;
}

void LayerQuestions::remember(const LayerQuestion& question,
                              std::shared_ptr<const ScheduleAnswers> answers) {
  if (answers_.size() < kMost) {
    answers_.push_back({question, std::move(answers)});
    return;
  }
  answers_[next_] = {question, std::move(answers)};
  next_ = (next_ + 1) % kMost;
}

void LayerQuestions::setModel(std::unique_ptr<LayerModel> model, unsigned long number) {
  model_ = std::move(model);
  number_ = number;
  answers_.clear();
  next_ = 0;
}

LayerQuestions& questionsOf(moecclGrid_t grid) {
  moecclInternalGrid_t it;
  requireSuccess(moecclInternalDescribe(grid, &it));
  if (it.attached == nullptr) {
    it.attached = new LayerQuestions;
    requireSuccess(moecclInternalAttach(
        grid, it.attached, [](void* object) { delete static_cast<LayerQuestions*>(object); }));
  }
  LayerQuestions& questions = *static_cast<LayerQuestions*>(it.attached);
  if (questions.isFor(it.model)) return questions;
  const Cluster cluster = clusterOf(grid, it);
  auto model = std::make_unique<LayerModel>(cluster);
  if (cluster.profile != nullptr) model->prepare();
  questions.setModel(std::move(model), it.model);
  return questions;
}

std::vector<LayerModel::Candidate> candidatesOf(moecclGrid_t grid,
                                                const moecclMoeConfig_t& config) {
  const Subject subject = subjectOf(
      {config, config.training != 0 ? moecclPassBoth : moecclPassForward, moecclScheduleAuto},
      groupsOf(grid).shape);
  return questionsOf(grid).model().candidates(subject.offered, subject.passes, subject.free);
}

Cluster clusterOf(const moecclCluster_t& imagined) {
  Known known;
  if (imagined.profile != nullptr)
    requireSuccess(moecclInternalModel(nullptr, imagined.profile, &Known::take, &known));
  return imaginedCluster(imagined, std::move(known.profile));
}

}  // namespace moeccl

// Chooses a schedule for each number of tokens, by prediction, by what was learned or by what was
// restored, and explains and saves the choice.
#include "src/route/route_schedules.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "moeccl/model.h"
#include "src/base/boundary.h"
#include "src/base/log.h"
#include "src/base/round_up.h"
#include "src/base/text.h"
#include "src/model/schedule_list.h"
#include "src/route/question.h"

namespace moeccl {
namespace {

// The next eighth of a power of two.
std::int64_t bucketOf(std::int64_t tokens) {
  std::int64_t step = 1;
  while (tokens > 16 * step) step *= 2;
  return roundUp(tokens, step);
}

std::string nameOf(const ScheduleChoice& choice) {
  return nameInChunks(choice.schedule, 1, choice.routed);
}

}  // namespace

const char* whyNotAround(moecclSchedule_t schedule, const moecclGridShape_t& grid, bool training) {
  if (training && grid.nMp > 1 && schedule != moecclScheduleAuto && seesCopies(schedule))
    return "under it experts see each token N_MP times, and add its gradients as often; for "
           "training it must be another, or the grid's nMp 1";
  return nullptr;
}

RouteSchedules::RouteSchedules(moecclGrid_t grid, const RouteShape& shape, int device,
                               Candidates candidates)
    : shape_(shape),
      device_(device),
      candidates_(std::move(candidates)),
      groups_(groupsOf(grid)),
      compute_(device >= 0 ? givenComputeOnGpu(shape.datatype)
                           : givenComputeOnHost(shape.datatype)) {
  const Device current(*this);
  passed_ = compute_->mark();
  // Say what is wrong.
  layerShape(configOf(0), shape.schedule, groups_.shape);
  requireRoomFor(shape.maxTokens, "config.maxTokens");
}

RouteSchedules::~RouteSchedules() {
  const Device current(*this);
  memory_ = {};
  passed_.reset();
}

moecclMoeConfig_t RouteSchedules::configOf(std::int64_t tokens) const {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = tokens;
  config.embedding = shape_.hidden;
  // Two matrices make up an expert, as wide as a layer's can be.
  const std::int64_t shards = groups_.shape.nEsp;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  config.hidden =
      shards * std::clamp<std::int64_t>(shape_.expertElements / (2 * shape_.hidden) / shards, 1,
                                        kMost / shards);
  config.experts = shape_.experts.count;
  config.topK = shape_.choices;
  config.capacityFactor = shape_.capacityFactor;
  config.capacityGroups = shape_.capacityGroups;
  config.minCapacity = shape_.minCapacity;
  config.dropless = shape_.capacityFactor == 0 ? 1 : 0;
  config.datatype = shape_.datatype;
  config.schedule = shape_.schedule;
  config.training = shape_.training ? 1 : 0;
  config.learn = shape_.learn ? 1 : 0;
  config.chunks = 1;
  // No prediction knows for how long a routing makes the host wait on GPUs.
  if (device_ >= 0 && config.dropless == 1) config.tokenRouting = -1;
  return config;
}

// what: where the number is from.
void RouteSchedules::requireRoomFor(std::int64_t tokens, const char* what) const {
  try {
    layerShape(configOf(tokens), shape_.schedule, groups_.shape);
  } catch (const Error&) {
    throw Error(moecclInvalidArgument, std::string(what) + " is " + std::to_string(tokens) +
                                           "; so many tokens exceed the address space");
  }
}

LayerShape RouteSchedules::shapeOf(std::int64_t tokens, const ScheduleChoice& choice) const {
  moecclMoeConfig_t config = configOf(tokens);
  if (config.dropless == 1) config.tokenRouting = choice.routed ? 1 : -1;
  return layerShape(config, choice.schedule, groups_.shape);
}

bool RouteSchedules::mayRoute() const {
  if (device_ >= 0 || shape_.capacityFactor > 0) return false;
  const LayerShape shape = layerShape(configOf(0), moecclScheduleAuto, groups_.shape);
  return shape_.schedule == moecclScheduleAuto ? routesSomehow(shape)
                                               : routesUnder(shape_.schedule, shape);
}

void RouteSchedules::makeRoute() {
  route_ = schedules::routeFor(groups_, shape_.experts.count, shape_.choices, shape_.hidden,
                               shape_.datatype);
}

ScheduleChoice RouteSchedules::predicted(std::int64_t tokens) const {
  const moecclMoeConfig_t config = configOf(tokens);
  if (shape_.schedule != moecclScheduleAuto && route_ == nullptr) return {shape_.schedule, false};
  const LayerQuery query(groups_.grid, config);
  struct Destroy {
    void operator()(moecclChoices_t it) const { moecclChoicesDestroy(it); }
  };
  moecclChoices_t found = nullptr;
  int count = 0;
  requireSuccess(moecclSelect(query.get(), &found, &count));
  const std::unique_ptr<std::remove_pointer_t<moecclChoices_t>, Destroy> owned(found);
  for (int i = 0; i < count; ++i) {
    moecclChoice_t one = MOECCL_CHOICE_INITIALIZER;
    requireSuccess(moecclChoicesGet(found, i, -1, &one));
    if (whyNotAround(one.schedule, groups_.shape, shape_.training) == nullptr)
      return {one.schedule, one.tokenRouting == 1};
  }
  throw Error(moecclInternalError, "no schedule serves the route");
}

// The learning of a route whose schedule is automatic; null: it has no other to choose.
std::shared_ptr<Learning> RouteSchedules::learningFor(std::int64_t tokens,
                                                      const ScheduleChoice& first) const {
  std::vector<LayerModel::Candidate> all = candidates_(configOf(tokens));
  std::erase_if(all, [&](const LayerModel::Candidate& it) {
    return it.shape.chunks > 1 || (it.shape.routed && route_ == nullptr) ||
           whyNotAround(it.shape.schedule, groups_.shape, shape_.training) != nullptr;
  });
  return learningOf(groups_, *compute_, configOf(tokens), shapeOf(tokens, first), std::move(all));
}

// Logs each choice once.
void RouteSchedules::tell() const {
  if (groups_.world.rank != 0 || !logs(LogLevel::info)) return;
  const std::string text = explanation();
  log(LogLevel::info, {0, groups_.world.ranks}, "route: %s",
      text.substr(0, text.find('\n')).c_str());
}

RouteSchedules::Begun RouteSchedules::begin(std::int64_t tokens) {
  last_ = tokens;
  const std::int64_t bucket = bucketOf(tokens);
  auto known = chosen_.find(bucket);
  if (known == chosen_.end()) {
    known = chosen_.emplace(bucket, predicted(bucket)).first;
    tell();
  }
  if (learned_ < 0 && learns()) {
    learning_ = learningFor(tokens, known->second);
    learned_ = tokens;
  }
  if (kept_) return {*kept_, {}};
  if (learning_ == nullptr) return {known->second, {}};
  const bool timed = tokens == learned_;
  // Making one ready takes nothing but what a pass takes.
  if (timed) learning_->begin([](std::size_t) { return true; });
  const std::size_t now = timed ? learning_->learner().running() : learning_->learner().current();
  const LayerShape& shape = learning_->shape(now);
  Begun begun{{shape.schedule, shape.routed}, {}};
  if (timed) begun.alternative = now;
  return begun;
}

void RouteSchedules::record(std::size_t alternative, Pass pass, const schedules::PassRun& run) {
  if (learning_ != nullptr) learning_->learner().record(alternative, pass, run.times());
}

void RouteSchedules::requireBegun() const {
  if (last_ < 0)
    throw Error(moecclInvalidUsage, "no pass has begun; the schedule is chosen by its tokens");
}

std::string RouteSchedules::explain() const {
  requireBegun();
  if (learning_ != nullptr) return learning_->learner().explain();
  const std::string text = explanation();
  return kept_ ? "runs under " + nameOf(*kept_) + ", which was restored\n" + text : text;
}

// Explains the schedule of the last Begin, as predictions say.
std::string RouteSchedules::explanation() const {
  const moecclMoeConfig_t config = configOf(bucketOf(last_));
  return LayerQuery(groups_.grid, config).explanation();
}

std::string RouteSchedules::save() const {
  requireBegun();
  if (learning_ != nullptr) return learning_->learner().save();
  return savedChoice(wordOf(configOf(last_), groups_.shape),
                     nameOf(kept_ ? *kept_ : chosen_.at(bucketOf(last_))));
}

std::function<void()> RouteSchedules::restore(std::string_view text) {
  // Before the first Begin the text says for how many tokens it is.
  const std::int64_t its = tokensIn(text), tokens = learned_ >= 0 ? learned_ : its;
  requireRoomFor(its, "the text's number of tokens");
  std::shared_ptr<Learning> learning = learning_;
  if (learned_ < 0 && learns()) learning = learningFor(tokens, predicted(bucketOf(tokens)));
  if (learning != nullptr) {
    Learner restored = learning->learner();
    restored.restore(text);
    return [this, learning, tokens, restored = std::move(restored)] {
      learning_ = learning;
      learning_->learner() = restored;
      learned_ = tokens;
    };
  }
  // What is not learned is for any number of tokens.
  const InChunks saved = scheduleIn(text, wordOf(configOf(its), groups_.shape), shape_.schedule);
  const std::string name = nameInChunks(saved.schedule, saved.chunks, saved.routed);
  if (saved.chunks > 1)
    throw Error(moecclInvalidArgument,
                "text is of schedule " + name + ", but a route's has no chunks");
  const ScheduleChoice choice{saved.schedule, saved.routed};
  if (choice.routed && route_ == nullptr)
    throw Error(moecclInvalidUsage,
                "text is of schedule " + name + ", but the route does not route tokens");
  if (const char* why = whyNotAround(choice.schedule, groups_.shape, shape_.training))
    throw Error(moecclInvalidUsage, "text is of schedule " + name + "; " + why);
  shapeOf(its, choice);  // says what is wrong
  return [this, choice] { kept_ = choice; };
}

}  // namespace moeccl

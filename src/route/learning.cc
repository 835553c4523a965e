// Adds up the learner's numbers of all ranks by an all-reduce once in a period, and logs changes on
// rank 0.
#include "src/route/learning.h"

#include <utility>

#include "src/base/boundary.h"
#include "src/base/log.h"

namespace moeccl {

Learning::Learning(const Groups& groups, Mover& mover, Learner learner,
                   std::vector<LayerShape> shapes)
    : groups_(groups),
      learner_(std::move(learner)),
      shapes_(std::move(shapes)),
      mine_(learner_.size()),
      sums_(learner_.size()),
      stream_(mover.sideStream(groups.world.comm)) {}

void Learning::begin(const std::function<bool(std::size_t)>& prepare) {
  if (!learner_.begin()) return;
  exchange();
  if (const auto wanted = learner_.wanted()) learner_.setReady(prepare(*wanted));
  learner_.write(mine_);
  requireSuccess(moecclAllReduce(mine_.data(), sums_.data(), mine_.size(), moecclInt64, moecclSum,
                                 groups_.world.comm, stream_->get()));
}

// All ranks have come to the last period's end, and have exchanged tokens since: the sums are
// there.
void Learning::exchange() {
  if (const moecclResult_t result = stream_->join(nullptr); result != moecclSuccess)
    throw Error(result, std::string("AllReduce of what the layer measured: ") +
                            moecclGetLastError(nullptr));
  if (learner_.apply(sums_)) logChange();
}

void Learning::logChange() const {
  if (groups_.world.rank == 0)
    log(LogLevel::info, {groups_.world.rank, groups_.world.ranks}, "the layer changes: %s",
        learner_.why().c_str());
}

void Learning::settle(std::size_t alternative) {
  const bool changes = alternative != learner_.current();
  learner_.settle(alternative);
  if (changes) logChange();
}

std::size_t Learning::withoutChunks(std::size_t alternative) const {
  const LayerShape& cut = shapes_[alternative];
  for (std::size_t i = 0; i < shapes_.size(); ++i)
    if (shapes_[i].schedule == cut.schedule && shapes_[i].chunks == 1 &&
        shapes_[i].routed == cut.routed)
      return i;
  return alternative;
}

std::string wordOf(const moecclMoeConfig_t& config, const moecclGridShape_t& grid) {
  const auto whole = [](std::int64_t number) { return static_cast<long long>(number); };
  return stringf(
      "tokens=%lld,embedding=%lld,hidden=%lld,experts=%lld,topK=%lld,capacityFactor=%s,"
      "capacityGroups=%lld,datatype=%d,training=%d,dropless=%d,residual=%lld,tokenRouting=%lld,"
      "grid=%dx%dx%d/%d",
      whole(config.tokens), whole(config.embedding), whole(config.hidden), whole(config.experts),
      whole(config.topK), numberText(config.capacityFactor).c_str(), whole(config.capacityGroups),
      static_cast<int>(config.datatype), config.training, config.dropless, whole(config.residual),
      whole(config.tokenRouting), grid.nMp, grid.nEp, grid.nEsp, static_cast<int>(grid.order));
}

std::string savedChoice(const std::string& word, const std::string& name) {
  Alternative alone;
  alone.name = name;
  return Learner(word, {alone}, 0, 1).save();
}

InChunks scheduleIn(std::string_view text, const std::string& word, moecclSchedule_t requested) {
  const std::string name = choiceIn(text, word);
  const auto named = inChunksNamed(name);
  if (!named)
    throw Error(moecclInvalidArgument, "text names \"" + name + "\", which is no schedule");
  if (requested != moecclScheduleAuto && requested != named->schedule)
    throw Error(moecclInvalidUsage, "text is of schedule " + name +
                                        ", but config.schedule or MOECCL_SCHEDULE asks for " +
                                        nameOf(requested));
  return *named;
}

std::unique_ptr<Learning> learningOf(const Groups& groups, Mover& mover,
                                     const moecclMoeConfig_t& config, const LayerShape& first,
                                     std::vector<LayerModel::Candidate> candidates) {
  std::vector<Alternative> alternatives;
  std::vector<LayerShape> shapes;
  std::optional<std::size_t> begin;
  for (LayerModel::Candidate& it : candidates) {
    if (it.shape.schedule == first.schedule && it.shape.chunks == first.chunks &&
        it.shape.routed == first.routed)
      begin = shapes.size();
    shapes.push_back(it.shape);
    alternatives.push_back(std::move(it.costs));
  }
  if (!begin || shapes.size() < 2) return nullptr;
  return std::make_unique<Learning>(
      groups, mover,
      Learner(wordOf(config, groups.shape), std::move(alternatives), *begin, groups.world.ranks),
      std::move(shapes));
}

}  // namespace moeccl

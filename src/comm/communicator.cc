// Decides how calls are done: by the algorithm that the user has fixed, or else the fastest by the
// cost model. Warns where that is far from what calls take.
#include "src/comm/communicator.h"

#include <algorithm>
#include <optional>

#include "algorithms/choice.h"
#include "src/base/log.h"
#include "src/comm/bounded_blocks.h"
#include "src/model/alternatives.h"
#include "src/model/answers.h"

namespace moeccl {
namespace {

// Bytes of memory that a relay may need for what passes by it from one rank. Calls with larger
// bounds run as those without any.
constexpr std::size_t kMostRelayed = std::size_t{64} << 20;

// The size of a block by which algorithms are priced. All ranks know it.
std::size_t pricedBytes(const CollectiveCall& call) {
  if (call.bounded) return call.meanBytes;
  return call.rankBytes.empty() ? call.blockBytes : call.blockBytes / call.rankBytes.size();
}

}  // namespace

Typical typicalOf(const Communicator& communicator) {
  const auto device = communicator.device();
  return typicalOf(!device          ? moecclLinksHost
                   : device->nvlink ? moecclLinksNvlink
                                    : moecclLinksPcie);
}

CostModel& Communicator::model() {
  if (model_ == nullptr) setProfile(nullptr);
  return *model_;
}

void Communicator::setProfile(std::shared_ptr<const Profile> profile, int ranksOnNode) {
  model_ =
      std::make_unique<CostModel>(topology_, std::move(profile), ranksOnNode, typicalOf(*this));
}

void Communicator::chooseAs(const Communicator& parent) {
  // Makes no model of `parent`, which other threads read.
  if (parent.model_ != nullptr)
    setProfile(parent.model_->profile(), parent.model_->ranksOnNode());
  else
    setProfile(nullptr, parent.topology_.nodeSize(largestNode(parent.topology_)));
}

void Communicator::decide(CollectiveCall& call) {
  if (call.bounded && call.blockBytes > kMostRelayed / static_cast<std::size_t>(ranks())) {
    call.bounded = false;
    call.blockBytes = 0;
  }
  const Parameters asked = call.choice.parameters;
  AlgorithmChoice choice = settings_.choiceFor(call.collective);
  choice.parameters.grid = asked.grid;
  choice.parameters.experts = asked.experts;
  if (choice.algorithm == nullptr) choice = fastest(call, choice.parameters);
  // The root has the same plans as rank 0 would, but for names: so algorithms are chosen as for
  // rank 0.
  choice.parameters.root = asked.root;
  call.choice = choice;
  if (!call.bounded || device()) return;
  // Each message says how large its blocks are.
  const auto blocks =
      std::make_shared<BoundedBlocks>(call.blockBytes, call.inputTable, call.outputTable);
  call.content = blocks.get();
  call.keep = blocks;
}

AlgorithmChoice Communicator::fastest(const CollectiveCall& call, const Parameters& problem) {
  // Only sender and receiver know how large a block is, and all ranks must choose alike.
  if (call.collective == Collective::allToAllv && !call.bounded)
    return {&firstAlgorithm(call.collective), problem};
  const std::size_t priced = pricedBytes(call);
  const AlgorithmChoice chosen = model().choose(
      call.collective, problem, priced, [this](const AlgorithmChoice& it) { return serves(it); },
      call.bounded && device() ? call.blockBytes : 0);
  tell(chosen, priced);
  return chosen;
}

// Logs the chosen algorithm and the runner-up, once for each choice. Rank 0 alone logs, at level
// INFO.
void Communicator::tell(const AlgorithmChoice& chosen, std::size_t blockBytes) {
  if (rank_ != 0 || !logs(LogLevel::info)) return;
  const Collective collective = chosen.algorithm->collective;
  const std::string name = std::string(nameOf(collective)) + ' ' + textOf(chosen);
  if (std::ranges::find(told_, name) != told_.end()) return;
  told_.push_back(name);
  AlgorithmChoice given = chosen;
  given.algorithm = nullptr;
  const Contract contract{collective, ranks(), given.parameters.grid, given.parameters.experts};
  const double bytes = static_cast<double>(blockBytes) * contract.inputBlocks(0);
  std::optional<Answer> ours, then;
  for (const CostModel::Estimate& it : model().estimates(collective, given, bytes)) {
    std::optional<Answer>& slot = textOf(it.choice) == textOf(chosen) ? ours : then;
    if (!slot) slot = answerOf(it);
  }
  if (ours)
    log(LogLevel::info, {rank_, ranks()}, "%s of %zu B blocks: %s",
        std::string(nameOf(collective)).c_str(), blockBytes,
        firstLine(*ours, then ? &*then : nullptr).c_str());
}

void Communicator::checkProfile(double predicted, double seconds) {
  if (const std::string warning = profileCheck_.add(predicted, seconds); !warning.empty())
    log(LogLevel::warn, {rank_, ranks()}, "%s", warning.c_str());
}

}  // namespace moeccl

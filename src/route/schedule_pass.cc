// Begins a pass under a schedule: ranks agree on the largest number of tokens, set up the schedule,
// and exchange choices with their groups. Calls then run its phases up to the experts, or behind
// them.
#include "src/route/schedule_pass.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/comm/agreement.h"
#include "src/model/schedule_list.h"
#include "src/model/schedule_terms.h"
#include "src/route/tells.h"

namespace moeccl {
namespace {

// Instead of a number of tokens: the rank's routing is wrong.
constexpr std::int32_t kWrong = -1;

// Whether gates take the batches of all ranks of an ESP group.
bool gatesBatches(const LayerShape& shape) {
  const schedules::Schedule& forward = valueOf(shape, Pass::forward);
  return std::ranges::any_of(forward.phases, [&](const schedules::Phase& phase) {
    return phase.kind == schedules::Kind::gate &&
           forward.tables[static_cast<std::size_t>(phase.reads[0])].shape.front() ==
               schedules::Dim::esp;
  });
}

template <typename Real>
void setOne(std::vector<std::byte>& weights, std::size_t at) {
  constexpr Real kOne = 1;
  std::memcpy(weights.data() + at * sizeof kOne, &kOne, sizeof kOne);
}

std::string nameOf(const RouteShape& shape) {
  return "a route's Begin under a schedule, of " + std::to_string(shape.choices) + " of " +
         std::to_string(shape.experts.count) + " experts, " + std::to_string(shape.hidden) + " x " +
         std::string(typeName(shape.datatype));
}

}  // namespace

// What a pass takes under one schedule, for so many tokens.
struct SchedulePass::Setup {
  // layer: the shape of the tokens that the schedule sees, with the places that the largest number
  // takes. ownLayer: that of the MP group's own tokens.
  Setup(RouteSchedules& all, const LayerShape& layer, const LayerShape& ownLayer,
        std::int64_t itsLargest, const ScheduleChoice& itsChoice, schedules::PassMemory& memory)
      : choice(itsChoice),
        largest(itsLargest),
        own(ownLayer),
        first(own.firstToken(all.groups().mp.rank)),
        count(std::min(own.partTokens, own.tokens - first)),
        work(all.groups(), all.compute(), layer),
        run(work, memory, all.memory()) {
    run.setRoute(all.route());
  }

  const ScheduleChoice choice;
  const std::int64_t largest;
  const LayerShape own;
  const std::int64_t first, count;  // tokens of these that this rank owns
  ScheduleWork work;
  schedules::PassRun run;
};

SchedulePass::SchedulePass(Communicator& communicator, const RouteShape& shape,
                           const RoutePrices& prices, RouteSchedules& schedules)
    : RoutePass(shape, communicator.rank(), prices),
      schedules_(schedules),
      beginName_(std::make_shared<PlanName>(nameOf(shape))),
      sharedName_(std::make_shared<PlanName>("route: tokens of an MP group")),
      gatherName_(std::make_shared<PlanName>("route: choices of other ranks")),
      begins_(static_cast<std::size_t>(shape.localExperts(communicator.rank())) + 1, 0) {}

SchedulePass::~SchedulePass() {
  const RouteSchedules::Device current(schedules_);
  setup_.reset();
  memory_ = {};
  padding_.reset();
}

// The largest number of tokens of all ranks. Ranks of an MP group have the same.
std::int64_t SchedulePass::agree(Communicator& communicator, const Routing& routing) {
  if (shape_.maxTokens > 0) {
    agreeInGroup(communicator, routing.tokens);
    return shape_.maxTokens;
  }
  const auto ranks = static_cast<std::size_t>(communicator.ranks());
  const std::int32_t mine = routing.wrong ? kWrong : static_cast<std::int32_t>(routing.tokens);
  const std::vector<std::int32_t> tells(ranks, mine);
  std::vector<std::int32_t> told(ranks);
  tellEachOther(communicator, beginName_, tells.data(), told.data(), sizeof mine);
  if (std::ranges::find(told, kWrong) != told.end()) {
    CommunicatorOob oob(communicator);
    moeccl::agree(oob, routing.wrong);  // throws
  }
  requireShared(0, {told.begin(), told.end()});
  return *std::ranges::max_element(told);
}

std::vector<int> SchedulePass::mpRanks() const {
  const Group& mp = schedules_.groups().mp;
  std::vector<int> ranks(static_cast<std::size_t>(mp.ranks));
  std::iota(ranks.begin(), ranks.end(), rank_ - mp.rank);
  return ranks;
}

std::vector<int> SchedulePass::espRanks() const {
  const Groups& groups = schedules_.groups();
  const moecclGridShape_t& grid = groups.shape;
  std::vector<int> ranks;
  for (int shard = 0; shard < groups.esp.ranks; ++shard)
    ranks.push_back(grid.order == moecclOrderEspEp ? groups.ep.rank * grid.nEsp + shard
                                                   : shard * grid.nEp + groups.ep.rank);
  return ranks;
}

// Other MP groups hear nothing of it, so they are told what is wrong.
void SchedulePass::agreeInGroup(Communicator& communicator, std::int64_t tokens) const {
  const std::vector<int> ranks = mpRanks();
  if (ranks.size() == 1) return;
  std::vector<std::byte> mine(sizeof tokens);
  std::memcpy(mine.data(), &tokens, sizeof tokens);
  std::vector<std::int64_t> told;
  for (const auto& its : tellGroup(communicator, sharedName_, ranks, mine))
    std::memcpy(&told.emplace_back(), its.data(), sizeof tokens);
  try {
    requireShared(ranks[0], told);
  } catch (const Error& error) {
    communicator.revoke(error.what());
    throw;
  }
}

// tokensOf: of world ranks from `first` on.
void SchedulePass::requireShared(int first, const std::vector<std::int64_t>& tokensOf) const {
  const auto ranks = static_cast<std::size_t>(schedules_.groups().shape.nMp);
  const auto says = [&](std::size_t rank) {
    return std::to_string(tokensOf[rank]) + " on rank " +
           std::to_string(first + static_cast<int>(rank));
  };
  for (std::size_t rank = 0; rank < tokensOf.size(); ++rank)
    if (const std::size_t one = rank / ranks * ranks; tokensOf[rank] != tokensOf[one])
      throw Error(moecclInvalidArgument, "routing.tokens is " + says(one) + " and " + says(rank) +
                                             "; ranks of an MP group bring the same tokens");
}

void SchedulePass::setUp(std::int64_t largest, const ScheduleChoice& choice) {
  if (setup_ != nullptr && setup_->choice == choice && setup_->largest == largest &&
      setup_->own.tokens == tokens_)
    return;
  setup_.reset();
  const LayerShape own = schedules_.shapeOf(tokens_, choice);
  LayerShape shape = schedules_.shapeOf(largest, choice);
  // Batches of several MP groups lie side by side, as large as the largest.
  if (!gatesBatches(shape)) {
    const std::int64_t places = shape.groupSlots;
    shape = own;
    if (!shape.dropless) shape.groupSlots = shape.gate.capacitySlots = places;
  }
  setup_ = std::make_unique<Setup>(schedules_, shape, own, largest, choice, memory_);
  if (shape_.learn) setup_->run.takeTimes();
}

GivenChoices SchedulePass::choicesOf(const Routing& routing, std::int64_t first,
                                     std::int64_t count) const {
  const auto begin = static_cast<std::size_t>(first * shape_.choices);
  const auto size = static_cast<std::size_t>(count * shape_.choices);
  GivenChoices choices{count, {}, {}};
  if (count == 0) return choices;
  choices.experts.assign(routing.experts + begin, routing.experts + begin + size);
  choices.weights.resize(size * shape_.weightBytes());
  if (!shape_.hasWeights()) {
    for (std::size_t i = 0; i < size; ++i)
      shape_.datatype == moecclFloat64 ? setOne<double>(choices.weights, i)
                                       : setOne<float>(choices.weights, i);
    return choices;
  }
  const auto* const weights =
      static_cast<const std::byte*>(routing.weights) + begin * shape_.weightBytes();
  std::copy_n(weights, choices.weights.size(), choices.weights.data());
  return choices;
}

// The number of tokens, their experts and weights, and as many bytes more as for `room` tokens.
std::vector<std::byte> SchedulePass::packed(const GivenChoices& choices, std::int64_t room) const {
  std::vector<std::byte> bytes(sizeof choices.tokens +
                               static_cast<std::size_t>(room * shape_.choices) *
                                   (sizeof(std::int32_t) + shape_.weightBytes()));
  std::byte* to = bytes.data();
  const auto put = [&](std::span<const std::byte> from) { to = std::ranges::copy(from, to).out; };
  put(std::as_bytes(std::span(&choices.tokens, 1)));
  put(std::as_bytes(std::span(choices.experts)));
  put(choices.weights);
  return bytes;
}

GivenChoices SchedulePass::unpacked(const std::vector<std::byte>& bytes) const {
  GivenChoices choices;
  const std::byte* from = bytes.data();
  const auto take = [&](std::span<std::byte> to) {
    std::copy_n(from, to.size(), to.data());
    from += to.size();
  };
  take(std::as_writable_bytes(std::span(&choices.tokens, 1)));
  choices.experts.resize(static_cast<std::size_t>(choices.tokens * shape_.choices));
  choices.weights.resize(choices.experts.size() * shape_.weightBytes());
  take(std::as_writable_bytes(std::span(choices.experts)));
  take(choices.weights);
  return choices;
}

// The choices of these ranks, of up to `room` tokens each.
std::vector<GivenChoices> SchedulePass::gather(Communicator& communicator,
                                               const std::vector<int>& ranks,
                                               const GivenChoices& own, std::int64_t room) const {
  std::vector<GivenChoices> all;
  for (const auto& its : tellGroup(communicator, gatherName_, ranks, packed(own, room)))
    all.push_back(unpacked(its));
  return all;
}

// Ranks of an MP group bring the same tokens. For each token the choices count that its owner
// brings, and those are gathered here.
void SchedulePass::gatherParts(Communicator& communicator, const Routing& routing,
                               GivenChoices& all) const {
  const LayerShape& own = setup_->own;
  const auto begin = [&](int part) {
    return static_cast<std::size_t>(own.firstToken(part) * shape_.choices);
  };
  const GivenChoices mine = choicesOf(routing, setup_->first, setup_->count);
  int from = 0;
  for (const GivenChoices& theirs : gather(communicator, mpRanks(), mine, own.partTokens)) {
    const std::size_t at = begin(from++);
    std::ranges::copy(theirs.experts, all.experts.data() + at);
    std::ranges::copy(theirs.weights, all.weights.data() + at * shape_.weightBytes());
  }
}

std::vector<ScheduleWork::Given> SchedulePass::given(Communicator& communicator,
                                                     const Routing& routing) {
  const Groups& groups = schedules_.groups();
  const LayerShape& own = setup_->own;
  const auto with = [&](GivenChoices choices) {
    const LayerShape its =
        choices.tokens == own.tokens ? own : schedules_.shapeOf(choices.tokens, setup_->choice);
    return ScheduleWork::Given{std::move(choices), its.groupTokens, its.groupSlots};
  };
  std::vector<ScheduleWork::Given> all;
  if (setup_->work.gatesPart()) {
    all.push_back(
        {choicesOf(routing, setup_->first, setup_->count), own.groupTokens, own.groupSlots});
    return all;
  }
  GivenChoices batch = choicesOf(routing, 0, tokens_);
  if (groups.mp.ranks > 1) gatherParts(communicator, routing, batch);
  if (setup_->work.gatesBatches() && groups.esp.ranks > 1) {
    for (GivenChoices& each : gather(communicator, espRanks(), batch, setup_->largest))
      all.push_back(with(std::move(each)));
    return all;
  }
  all.push_back(with(std::move(batch)));
  return all;
}

template <typename Call>
void SchedulePass::run(Communicator& communicator, void* stream, Call call) {
  const RouteSchedules::Device current(schedules_);
  const moecclStream_t on =
      comeBehind(schedules_.compute(), schedules_.passed(), static_cast<moecclStream_t>(stream));
  try {
    call(on);
    schedules_.passed().set(on);
  } catch (const schedules::ExchangeError&) {  // all ranks get those
    throw;
  } catch (const Error& error) {
    communicator.revoke(error.what());
    throw;
  }
  schedules_.returned = schedules::Clock::now();
}

void SchedulePass::runPart(Pass pass, Part part, const schedules::PassRun::Callers& callers,
                           moecclStream_t stream) {
  setup_->run.start(pass, callers, stream, part);
  setup_->run.advance();
}

void SchedulePass::begin(Communicator& communicator, const Routing& routing, void* stream) {
  const std::int64_t largest = agree(communicator, routing);
  const RouteSchedules::Begun begun = schedules_.begin(largest);
  tokens_ = routing.tokens;
  alternative_ = begun.alternative;
  combined_ = false;
  run(communicator, stream, [&](moecclStream_t on) {
    setUp(largest, begun.choice);
    setup_->work.set(given(communicator, routing), setup_->first, setup_->count, on);
    runPart(Pass::forward, Part::tells, {}, on);
  });
  std::ranges::copy(setup_->run.rowBegins(), begins_.begin());
  loads_.add(setup_->count * shape_.choices, routing.experts + setup_->first * shape_.choices);
  loads_.addRows(begins_.back());
}

std::int64_t SchedulePass::dropped() const { return setup_->work.dropped(); }

const char* SchedulePass::algorithmName() const { return moeccl::nameOf(setup_->choice.schedule); }

void SchedulePass::rankCounts(Communicator& communicator, std::int64_t* counts) const {
  const std::size_t size = (begins_.size() - 1) * static_cast<std::size_t>(communicator.ranks());
  std::fill_n(counts, size, 0);
  setup_->run.countRows({counts, size});
}

const void* SchedulePass::padded(const void* tokens, moecclStream_t stream) {
  const std::int64_t all = setup_->work.shape().tokens * shape_.hidden;
  if (all == elements()) return tokens;
  roomFor(nullptr);
  GivenCompute& compute = schedules_.compute();
  if (elements() > 0) compute.copy(padding_.get(), tokens, elements(), stream);
  compute.zero(compute.at(padding_.get(), elements()), all - elements(), stream);
  return padding_.get();
}

void* SchedulePass::roomFor(void* tokens) {
  const std::int64_t all = setup_->work.shape().tokens * shape_.hidden;
  if (all == elements()) return tokens;
  const auto bytes = static_cast<std::size_t>(all * schedules_.compute().elementBytes());
  if (bytes > paddingRoom_) schedules_.compute().grow(padding_, paddingRoom_, bytes);
  return padding_.get();
}

void SchedulePass::unpad(void* tokens, moecclStream_t stream) {
  if (roomFor(tokens) != tokens && elements() > 0)
    schedules_.compute().copy(tokens, padding_.get(), elements(), stream);
}

void SchedulePass::dispatch(Communicator& communicator, const void* tokens, void* rows,
                            void* stream) {
  run(communicator, stream, [&](moecclStream_t on) {
    runPart(Pass::forward, Part::before, {.input = padded(tokens, on), .rows = rows}, on);
  });
}

void SchedulePass::combine(Communicator& communicator, const void* rows, void* output, bool forward,
                           void* stream) {
  const Pass which = forward ? Pass::forward : Pass::backward;
  setup_->run.skipTo(schedules_.returned);
  run(communicator, stream, [&](moecclStream_t on) {
    runPart(which, Part::behind, {.output = roomFor(output), .results = rows}, on);
    unpad(output, on);
  });
  combined_ |= forward;
  if (alternative_) schedules_.record(*alternative_, which, setup_->run);
}

void SchedulePass::combineBackward(Communicator& communicator, const void* outputGradients,
                                   const void* rows, void* rowGradients, void* weightGradients,
                                   void* stream) {
  // The rows that came back are kept for the gradients of weights.
  if (shape_.weighs() && !combined_)
    throw Error(moecclInvalidUsage,
                "the pass has had no moecclPassCombine, whose gradient this is; call that first");
  run(communicator, stream, [&](moecclStream_t on) {
    // Without weights nobody needs what the rows were.
    const void* const were = shape_.weighs() ? rows : rowGradients;
    runPart(Pass::backward, Part::before,
            {.input = padded(outputGradients, on), .rows = rowGradients, .again = were}, on);
    if (shape_.weighs()) setup_->work.takeWeightGradients(weightGradients, on);
  });
}

}  // namespace moeccl

// Times all-to-alls and all-gathers of a few sizes within a budget that all ranks agree on. Rank 0
// has links fitted to the times, and tells the others.
#include "src/probe/probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/choice.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/clock.h"
#include "src/comm/agreement.h"
#include "src/exec/gpu.h"
#include "src/model/alternatives.h"
#include "src/model/group_text.h"
#include "src/probe/keeper.h"

namespace moeccl {
namespace {

std::atomic<TimePoint (*)()> timeOfProbes{&Clock::now};

// Bytes of a rank's block. Small ones tell latencies, large ones bandwidths.
using Blocks = std::array<std::size_t, 5>;
constexpr Blocks kHostBlocks = {64, 1 << 10, 4 << 10, 16 << 10, 64 << 10};
constexpr Blocks kGpuBlocks = {256, 16 << 10, 256 << 10, 1 << 20, 4 << 20};
// Copies that are timed: far beyond a processor's caches.
constexpr std::size_t kCopied = std::size_t{1} << 20;
constexpr int kCopies = 4;
// The most bytes of a rank's input, and of its output.
constexpr std::size_t kMostOnHosts = std::size_t{8} << 20, kMostOnGpus = std::size_t{64} << 20;
// Bounds for one algorithm and size: repetitions, and the share of the budget that they may take.
constexpr int kMostRepetitions = 15;
constexpr double kShare = 0.05;
// A call that is expected to take a larger part of the time left is not made.
constexpr double kMostOfRest = 0.4;

struct Measured {
  Collective collective;
  const char* algorithm;
};
// Between them they use every kind of link in every pattern: each pair at once, rounds of pairs,
// leaders of nodes, neighbours.
constexpr Measured kMeasured[] = {
    {Collective::allToAll, "linear"},   {Collective::allToAll, "bruck"},
    {Collective::allToAll, "pairwise"}, {Collective::allToAll, "hierarchical"},
    {Collective::allGather, "ring"},    {Collective::allGather, "hierarchical"},
};

// Where a rank's buffers are, and a stream where calls need one.
class Room {
 public:
  Room(const std::optional<Device>& device, std::size_t room) : bytes(room), device_(device) {
    if (!device_) {
      host_.resize(2 * bytes);
      input = host_.data();
      output = input + bytes;
      return;
    }
    const OnDevice here(*device_->gpu, device_->number);
    input = device_->gpu->allocate(2 * bytes);
    output = input + bytes;
    try {
      stream = device_->gpu->newStream(false);
    } catch (...) {
      device_->gpu->free(input);
      throw;
    }
  }
  ~Room() {
    if (!device_) return;
    const OnDevice here(*device_->gpu, device_->number);
    device_->gpu->deleteStream(stream);
    device_->gpu->free(input);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  const std::size_t bytes;  // of each
  std::byte *input = nullptr, *output = nullptr;
  void* stream = nullptr;

 private:
  const std::optional<Device> device_;
  std::vector<std::byte> host_;
};

class Prober {
 public:
  explicit Prober(Communicator& communicator)
      : communicator_(communicator),
        oob_(communicator),
        onGpus_(communicator.device().has_value()),
        blocks_(onGpus_ ? kGpuBlocks : kHostBlocks) {}

  // Times calls until the budget is spent. All ranks return the same curves, or none where one of
  // them has no memory for it.
  std::vector<Curve> run() {
    if (!takeRoom()) return {};
    const Topology& topology = communicator_.topology();
    std::vector<AlgorithmChoice> all;
    for (const auto& [collective, name] : kMeasured)
      all.push_back({findAlgorithm(collective, name), {}});
    std::vector<Candidate> candidates;
    for (const AlgorithmChoice& choice : differentOf(all, topology)) {
      const Contract contract{choice.algorithm->collective, communicator_.ranks(), {}, 0};
      candidates.push_back(
          {keyOf(choice, topology), choice, nullptr, contract.inputBlocks(0), 0, 0, {}});
    }
    // Pages and connections are there from now on. They take long, and calls will need them.
    call(candidates[0], blocks_[0]);
    if (onGpus_) timeReading();
    begun_ = probeTime();
    spent_ = agreed(0).second;
    if (!onGpus_) timeCopies();
    // Links in nodes are measured by themselves, too, because a slow uplink hides them.
    if (std::optional<Candidate> inNodes = exchangeInNodes()) {
      for (std::size_t block : blocks_) measure(*inNodes, block, kProbeCallSeconds / 4);
      candidates.push_back(std::move(*inNodes));
    }
    // The first one up to large blocks, so that bandwidths are known; then all others.
    for (std::size_t block : blocks_) measure(candidates[0], block, kProbeCallSeconds / 2);
    for (std::size_t block : blocks_)
      for (std::size_t i = 1; i < candidates.size(); ++i)
        if (candidates[i].own == nullptr) measure(candidates[i], block, kProbeCallSeconds);
    std::vector<Curve> curves;
    for (Candidate& candidate : candidates)
      if (!candidate.samples.empty())
        curves.push_back({std::move(candidate.key), std::move(candidate.samples), {}});
    return curves;
  }
  TimePoint begun() const { return begun_; }
  // Seconds of a copy, per byte, where all ranks copy at once; 0: not measured.
  double copySeconds() const { return copySeconds_; }

 private:
  struct Candidate {
    CurveKey key;
    AlgorithmChoice choice;
    std::shared_ptr<CachedPlan> own;  // instead of the choice's
    int blocks;                       // of a rank's input
    double seconds;                   // of the last size that was measured; 0: none was
    std::size_t block;                // that size
    std::vector<Point> samples;
  };

  bool serves(std::size_t block) const {
    return block * static_cast<std::size_t>(communicator_.ranks()) <=
           (onGpus_ ? kMostOnGpus : kMostOnHosts);
  }

  bool takeRoom() {
    std::size_t largest = blocks_[0];
    for (std::size_t block : blocks_)
      if (serves(block)) largest = block;
    int failed = 0;
    try {
      room_.emplace(communicator_.device(),
                    largest * static_cast<std::size_t>(communicator_.ranks()));
    } catch (const std::exception& error) {
      failed = 1;
      log(LogLevel::info, {communicator_.rank(), communicator_.ranks()}, "no links measured: %s",
          error.what());
    }
    return std::ranges::none_of(exchangeValue(oob_, failed),
                                [](int theirs) { return theirs != 0; });
  }

  static CurveKey keyOf(const AlgorithmChoice& choice, const Topology& topology) {
    return {std::string(nameOf(choice.algorithm->collective)), textOf(choice), textOf(topology)};
  }

  // All-to-alls of the ranks of each node, of all nodes at once. Nothing where a node is all there
  // is, or none has two ranks; and on GPUs, whose links in nodes no uplink hides.
  std::optional<Candidate> exchangeInNodes() const {
    const Topology& topology = communicator_.topology();
    const int largest = topology.nodeSize(largestNode(topology));
    if (onGpus_ || topology.nodes() == 1 || largest == 1) return std::nullopt;
    const AlgorithmChoice linear{findAlgorithm(Collective::allToAll, "linear"), {}};
    const int node = topology.nodeOf(communicator_.rank());
    const std::span<const int> ranks = topology.ranksOn(node);
    Plan plan = linear.algorithm->plan(Topology::even(1, topology.nodeSize(node)), {},
                                       topology.localOf(communicator_.rank()));
    for (Op& op : plan.ops)
      if (op.peer >= 0) op.peer = ranks[static_cast<std::size_t>(op.peer)];
    return Candidate{
        keyOf(linear, Topology::even(1, largest)),
        {},
        ownPlan(std::make_shared<PlanName>("links in nodes, measured"), std::move(plan), nullptr),
        largest,
        0,
        0,
        {}};
  }

  // Times copies by all ranks at once, as ranks copy when they pack what they send.
  void timeCopies() {
    const std::size_t bytes = std::min(room_->bytes, kCopied);
    const TimePoint begun = probeTime();
    for (int i = 0; i < kCopies; ++i) std::memcpy(room_->output, room_->input, bytes);
    const double seconds = probeSecondsSince(begun) / static_cast<double>(kCopies * bytes);
    std::tie(copySeconds_, spent_) = agreed(seconds);
  }

  // On GPUs, returns when the result is there.
  void call(const Candidate& candidate, std::size_t block) {
    const PlannedCall buffers{room_->input, room_->output, block};
    if (candidate.own != nullptr)
      communicator_.launch({RowsCall{buffers, candidate.own}}, room_->stream);
    else
      communicator_.launch(
          {CollectiveCall{buffers, candidate.choice.algorithm->collective, candidate.choice}},
          room_->stream);
    if (onGpus_) read();
  }
  void read() {
    std::byte last;
    const Communicator::Reading part{&last, room_->output, 1};
    communicator_.read({&part, 1}, room_->stream);
  }
  // Times read() alone, which timed() takes off because it is not part of the call.
  void timeReading() {
    std::array<double, 3> times;
    for (double& time : times) {
      const TimePoint begun = probeTime();
      read();
      time = probeSecondsSince(begun);
    }
    reading_ = std::ranges::min(times);
  }

  // The longest of all ranks: of `seconds`, and since the beginning.
  std::pair<double, double> agreed(double seconds) {
    double longest = 0, spent = 0;
    for (const auto& [theirs, since] :
         exchangeValue(oob_, std::array<double, 2>{seconds, probeSecondsSince(begun_)})) {
      longest = std::max(longest, theirs);
      spent = std::max(spent, since);
    }
    return {longest, spent};
  }

  double timed(const Candidate& candidate, std::size_t block) {
    const TimePoint begun = probeTime();
    call(candidate, block);
    const double seconds = probeSecondsSince(begun);
    return std::max(seconds - reading_, 0.1 * seconds);
  }

  // All decisions are made by what all ranks agree on.
  void measure(Candidate& candidate, std::size_t block, double budget) {
    const double left = budget - spent_;
    const double expected = candidate.block == 0 ? 0
                                                 : candidate.seconds * static_cast<double>(block) /
                                                       static_cast<double>(candidate.block);
    if (!serves(block) || left <= 0 || expected > kMostOfRest * left) return;
    // The first one makes the plan.
    double seconds = 0;
    std::tie(seconds, spent_) = agreed(timed(candidate, block));
    const double share = kShare * kProbeCallSeconds;
    const int repetitions = static_cast<int>(
        std::clamp(share / std::max(seconds, 1e-9), 0.0, static_cast<double>(kMostRepetitions)));
    if (repetitions > 1) {
      std::vector<double> times(static_cast<std::size_t>(repetitions));
      for (double& time : times) time = timed(candidate, block);
      std::ranges::sort(times);
      std::tie(seconds, spent_) = agreed(times[times.size() / 2]);
    }
    candidate.seconds = seconds;
    candidate.block = block;
    candidate.samples.push_back(
        {static_cast<double>(block) * static_cast<double>(candidate.blocks), seconds, 0.1});
  }

  Communicator& communicator_;
  CommunicatorOob oob_;
  const bool onGpus_;
  const Blocks blocks_;
  std::optional<Room> room_;
  double reading_ = 0, copySeconds_ = 0;
  TimePoint begun_ = probeTime();
  double spent_ = 0;
};

}  // namespace

TimePoint probeTime() { return timeOfProbes.load()(); }
void replaceProbeTime(TimePoint (*now)()) { timeOfProbes = now == nullptr ? &Clock::now : now; }

std::shared_ptr<const Profile> probeLinks(Communicator& communicator, const Typical& typical) {
  const Topology& topology = communicator.topology();
  const std::string transport = communicator.transportName();
  if (!communicator.settings().probe || topology.ranks() == 1 || transport == "loopback")
    return nullptr;

  Fingerprint mine;
  for (int node = 0; node < topology.nodes(); ++node)
    mine.ranksPerNode.push_back(topology.nodeSize(node));
  mine.transport = transport;
  mine.library = stringf("%d.%d.%d", MOECCL_MAJOR, MOECCL_MINOR, MOECCL_PATCH);

  CommunicatorOob oob(communicator);
  std::optional<Keeper> keeper;
  Known known;
  // Rank 0 may fail alone; links are then typical ones.
  const auto asRank0 = [&](auto&& part) {
    if (communicator.rank() != 0) return;
    try {
      known = part();
    } catch (const std::exception& error) {
      log(LogLevel::info, {communicator.rank(), communicator.ranks()}, "no links measured: %s",
          error.what());
      known.found = -1;
    }
  };
  asRank0([&] { return keeper.emplace(communicator, mine).known(); });
  known = exchangeValue(oob, known)[0];
  if (known.found == 0) {
    Prober prober(communicator);
    std::vector<Curve> curves = prober.run();
    asRank0([&] {
      return keeper->fit(std::move(curves), prober.copySeconds(), typical.links, prober.begun());
    });
    known = exchangeValue(oob, known)[0];
  }
  return known.found == 1 ? profileOf(mine, known) : nullptr;
}

}  // namespace moeccl

// What the executor costs beside ncclSend and ncclRecv that are grouped by hand: the same messages,
// in turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "src/exec/nccl_run.h"
#include "tests/gpu/measurement.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

struct Problem {
  int ranks, rank, lanes;
  std::size_t bytes;  // of the message to each rank on each lane
  std::byte *from, *to;

  std::size_t buffer() const { return static_cast<std::size_t>(ranks * lanes) * bytes; }
  int block(int peer, int lane) const { return peer * lanes + lane; }
  std::size_t offset(int peer, int lane) const {
    return static_cast<std::size_t>(block(peer, lane)) * bytes;
  }
};

// One step a lane: a message to every other rank, and one from each.
class Executor {
 public:
  explicit Executor(Rank& rank) : lanes_(openGpu(), rank.device().join(rank.comm()), -1, true) {}
  ~Executor() { lanes_.destroy(); }

  void prepare(const Problem& problem) {
    run_.emplace(std::make_shared<PreparedPlan>(planOf(problem)));
    operands_.input = problem.from;
    operands_.output = problem.to;
    operands_.inputExtents = operands_.outputExtents = Extents::uniform(problem.bytes);
  }
  void call(Gpu::Stream stream) { run_->enqueue(lanes_, operands_, stream); }

 private:
  static Plan planOf(const Problem& problem) {
    PlanBuilder plan;
    plan.lanes(problem.lanes);
    for (int lane = 0; lane < problem.lanes; ++lane)
      for (int i = 1; i < problem.ranks; ++i) {
        const int to = (problem.rank + i) % problem.ranks;
        const int from = (problem.rank - i + problem.ranks) % problem.ranks;
        plan.recv({.lane = lane}, from, output(problem.block(from, lane)));
        plan.send({.lane = lane}, to, input(problem.block(to, lane)));
      }
    return plan.build();
  }

  NcclLanes lanes_;
  std::optional<NcclRun> run_;
  Operands operands_;
};

class ByHand {
 public:
  // Its communicators are made as the executor's lanes are, with as many blocks each.
  ByHand(int lanes, Rank& rank) : gpu_(openGpu()), root_(rank.device().join(rank.comm())) {
    for (int lane = 0; lane < lanes; ++lane)
      comms_.push_back(gpu_->split(root_, 0, rank.rank(), Gpu::Purpose::messages, -1));
    for (int lane = 1; lane < lanes; ++lane) streams_.push_back(gpu_->newStream(false));
    for (int lane = 0; lane < lanes; ++lane) events_.push_back(gpu_->newEvent());
  }
  ~ByHand() {
    for (Gpu::Comm comm : comms_) gpu_->destroy(comm);
    gpu_->destroy(root_);
    for (Gpu::Stream stream : streams_) gpu_->deleteStream(stream);
    for (Gpu::Event event : events_) gpu_->deleteEvent(event);
  }

  void prepare(const Problem& problem) { problem_ = problem; }
  void call(Gpu::Stream stream) {
    if (problem_.lanes > 1) gpu_->record(events_[0], stream);
    for (std::size_t lane = 1; lane < comms_.size(); ++lane)
      gpu_->wait(streams_[lane - 1], events_[0]);
    for (std::size_t lane = 0; lane < comms_.size(); ++lane)
      exchange(static_cast<int>(lane), lane == 0 ? stream : streams_[lane - 1]);
    for (std::size_t lane = 1; lane < comms_.size(); ++lane) {
      gpu_->record(events_[lane], streams_[lane - 1]);
      gpu_->wait(stream, events_[lane]);
    }
  }

 private:
  void exchange(int lane, Gpu::Stream stream) {
    const Gpu::Comm comm = comms_[static_cast<std::size_t>(lane)];
    gpu_->groupStart();
    for (int i = 1; i < problem_.ranks; ++i) {
      const int to = (problem_.rank + i) % problem_.ranks;
      const int from = (problem_.rank - i + problem_.ranks) % problem_.ranks;
      gpu_->recv(problem_.to + problem_.offset(from, lane), problem_.bytes, from, comm, stream);
      gpu_->send(problem_.from + problem_.offset(to, lane), problem_.bytes, to, comm, stream);
    }
    gpu_->groupEnd(comm, -1);
  }

  Problem problem_ = {};
  const std::shared_ptr<Gpu> gpu_;
  const Gpu::Comm root_;
  std::vector<Gpu::Comm> comms_;
  std::vector<Gpu::Stream> streams_;  // of lanes 1, 2, ...
  std::vector<Gpu::Event> events_;    // the fork, and the ends of those lanes
};

// The times of a call, on the GPU, and on the host until it is enqueued.
struct Microseconds {
  double gpu, host;
};

template <typename Contender>
Microseconds microseconds(Rank& rank, Contender& contender, int calls) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double, std::micro> host{};
  const double gpu = 1e3 * rank.device().milliseconds(rank.stream(), [&] {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) contender.call(rank.stream());
    host = Clock::now() - begin;
  });
  return {gpu / calls, host.count() / calls};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(Rank& rank, Executor& executor, ByHand& byHand, const Problem& problem) {
  // Without MPS processes that share a GPU take turns, and a call takes milliseconds.
  const std::size_t fitting = (std::size_t{64} << 20) / problem.buffer();
  const int repetitions = rank.quick() ? 2 : 11,
            calls = rank.quick() ? 1 : static_cast<int>(std::clamp<std::size_t>(fitting, 2, 20));
  executor.prepare(problem), byHand.prepare(problem);
  microseconds(rank, executor, calls), microseconds(rank, byHand, calls);
  std::vector<double> ours, theirs, ratios, ourHost, theirHost;
  const auto run = [&](auto& contender, std::vector<double>& gpu, std::vector<double>& host) {
    const Microseconds took = microseconds(rank, contender, calls);
    gpu.push_back(took.gpu), host.push_back(took.host);
  };
  std::mt19937 random;  // all ranks draw the same order
  for (int i = 0; i < repetitions; ++i) {
    const bool first = random() % 2 == 0;
    if (first) run(executor, ours, ourHost);
    run(byHand, theirs, theirHost);
    if (!first) run(executor, ours, ourHost);
    ratios.push_back(ours.back() / theirs.back());
  }
  if (rank.rank() != 0) return;
  const auto [least, most] = std::ranges::minmax(ratios);
  std::printf("%5d %6d %12zu %12.1f %12.1f %8.3f  (%.3f to %.3f) %12.1f %12.1f\n", problem.ranks,
              problem.lanes, problem.bytes, median(theirs), median(ours), median(ratios), least,
              most, median(theirHost), median(ourHost));
  std::fflush(stdout);
  record({{"ranks", problem.ranks},
          {"lanes", problem.lanes},
          {"bytes", problem.bytes},
          {"by_hand_us", median(theirs)},
          {"executor_us", median(ours)},
          {"ratio", median(ratios)},
          {"by_hand_host_us", median(theirHost)},
          {"executor_host_us", median(ourHost)}});
}

RANKS_BENCH(executor) {
  if (rank.rank() == 0)
    std::printf("%5s %6s %12s %12s %12s %8s  (least to most) %12s %12s\n", "ranks", "lanes",
                "bytes", "by hand, us", "executor, us", "ratio", "host, hand", "host, exec.");
  std::vector<std::size_t> sizes = {1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23};
  if (rank.quick()) sizes.resize(2);
  for (int lanes : {1, 3}) {
    // Communicators of one GPU take longer to make than messages to send.
    std::unique_ptr<Executor> executor;
    std::unique_ptr<ByHand> byHand;
    Problem problem{rank.ranks(), rank.rank(), lanes, sizes.back(), nullptr, nullptr};
    unsigned char* const from = rank.device().allocate(problem.buffer());
    unsigned char* const to = rank.device().allocate(problem.buffer());
    problem.from = reinterpret_cast<std::byte*>(from);
    problem.to = reinterpret_cast<std::byte*>(to);
    rank.step(std::to_string(lanes) + " lanes", [&] {
      executor = std::make_unique<Executor>(rank);
      byHand = std::make_unique<ByHand>(lanes, rank);
    });
    for (std::size_t bytes : sizes) {
      if (!byHand) break;
      problem.bytes = bytes;
      rank.step(std::to_string(lanes) + " lanes, " + std::to_string(bytes) + " bytes",
                [&] { measure(rank, *executor, *byHand, problem); });
    }
    byHand.reset(), executor.reset();
    rank.device().free(from);
    rank.device().free(to);
  }
}

}  // namespace
}  // namespace moeccl::gpu

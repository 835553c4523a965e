// Measures a collective size by size, the candidates in turns, until the last size or the end of
// its time. Candidates are the algorithms that the library predicts to be the fastest.
#include "perf/fit/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "perf/common/choices.h"
#include "perf/fit/candidates.h"

namespace moeccl::perf {
namespace {

// Not a power of two, at which transports change their ways: there, every sample would have the end
// of a message fall as well as it can.
constexpr std::uint64_t kStep = 3;
constexpr std::size_t kLargestReceive = 256u << 20;
constexpr double kLongestCall = 1;
constexpr int kExpertsPerRank = 1;
constexpr DataType kType{"float", moecclFloat32, sizeof(float)};

// Bytes of send buffers, ascending; the last is the largest that was asked for.
std::vector<std::uint64_t> sizesFor(const FitOptions& options) {
  const std::uint64_t last = options.maxBytes > 0 ? options.maxBytes : kLargestByDefault;
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = options.minBytes; bytes < last; bytes *= kStep) {
    sizes.push_back(bytes);
    if (bytes > last / kStep) break;
  }
  sizes.push_back(last);
  return sizes;
}

// Least seconds that a size takes that is `step` times the largest so far.
double leastCost(const std::vector<TimedCandidate>& candidates, double step) {
  double seconds = 0;
  for (const TimedCandidate& candidate : candidates) seconds += candidate.last * step * kMinCalls;
  return seconds;
}

}  // namespace

Swept sweep(Team& team, const FitOptions& options, const Subject& subject, double until,
            const std::function<void(std::size_t)>& showSize) {
  Memory& memory = team.job().memory();
  std::vector<std::unique_ptr<Competitor>> competitors;
  std::vector<TimedCandidate> candidates;
  for (const Candidate& one : subject.candidates) {
    if (subject.comm != nullptr)
      competitors.push_back(
          makeCompetitor(*one.collective, subject.world, one.algorithm, subject.comm, memory));
    candidates.push_back({one, subject.comm != nullptr ? competitors.back().get() : nullptr});
  }
  if (candidates.empty()) return {};

  const MeasuredCollective& collective = *subject.candidates[0].collective;
  const auto sendBlocks = static_cast<std::size_t>(collective.sendBlocks(subject.world));
  const auto recvBlocks = static_cast<std::size_t>(collective.recvBlocks(subject.world));
  const std::vector<std::uint64_t> sizes = sizesFor(options);
  Buffer send(memory), recv(memory);
  Swept swept;
  // Measures one size, until `end`, and returns its points.
  const auto measure = [&](std::size_t count, double end) {
    const std::size_t bytes = count * sizeof(float) * sendBlocks;
    showSize(bytes);
    if (subject.comm != nullptr) {
      send.atLeast(bytes);
      recv.atLeast(count * sizeof(float) * recvBlocks);
    }
    std::vector<Turn> turns;
    for (const TimedCandidate& candidate : candidates)
      turns.push_back({[&, competitor = candidate.competitor] {
        if (competitor != nullptr) competitor->exchange(send.data(), recv.data(), count, kType);
      }});
    takeTurns(team, turns, {options.steadyPercent, options.maxRepetitions, end, subject.calls},
              subject.counts);
    for (std::size_t i = 0; i < turns.size(); ++i)
      swept.points.push_back(
          {candidates[i].candidate, bytes, medianOf(turns[i].seconds), turns[i].steady});
    return std::span(swept.points).last(turns.size());
  };

  std::size_t smaller = 0;  // the count before
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t count = sizes[i] / sizeof(float) / sendBlocks;
    if (count == smaller) continue;
    const double step =
        smaller == 0 ? 1 : static_cast<double>(count) / static_cast<double>(smaller);
    if (count > kLargestReceive / sizeof(float) / recvBlocks) break;
    if (options.maxBytes == 0)
      std::erase_if(candidates, [&](const TimedCandidate& candidate) {
        return candidate.last * step > kLongestCall;
      });
    if (candidates.empty()) break;
    if (team.elapsed() + leastCost(candidates, step) >= until) {
      swept.cutAt = count * sizeof(float) * sendBlocks;
      break;
    }
    // Less than the same for each: one more size says more than closer medians of those before.
    const auto share = [&] {
      const double now = team.elapsed();
      return now + (until - now) / static_cast<double>(2 * (sizes.size() - i) - 1);
    };
    const double before = fastestOf(candidates);
    const std::span<const Point> points = measure(count, share());
    for (std::size_t j = 0; j < points.size(); ++j) {
      candidates[j].before = candidates[j].last;
      candidates[j].last = points[j].seconds.value;
    }
    // Where another algorithm becomes the fastest, a size halfway is measured, too; but the next
    // size comes first.
    const double next = i + 1 < sizes.size() ? leastCost(candidates, kStep) : 0;
    const auto between = static_cast<std::size_t>(
        std::sqrt(static_cast<double>(smaller) * static_cast<double>(count)));
    if (overtaken(candidates) && between > smaller &&
        team.elapsed() + leastCost(candidates, 1) + next < until)
      measure(between, std::min(share(), until - next));
    smaller = count;
    dropHopeless(candidates, before);
  }
  return swept;
}

std::vector<Candidate> candidatesFor(const Job& job, const FitOptions& options,
                                     const MeasuredCollective& collective,
                                     const moecclCluster_t* cluster) {
  constexpr int kRoom = 64;
  using Name = std::array<char, 48>;
  std::map<std::string, double> slower;  // than the fastest, at the size where it is best
  if (cluster != nullptr)
    for (const std::uint64_t bytes :
         {options.minBytes, std::uint64_t{64} << 10,
          options.maxBytes > 0 ? options.maxBytes : kLargestByDefault}) {
      const std::vector<Prediction> choices =
          algorithmChoices(*cluster, std::string(collective.name), bytes, kExpertsPerRank);
      for (const Prediction& choice : choices) {
        const double ratio = choice.seconds / choices[0].seconds;
        const auto known = slower.try_emplace(choice.name, ratio).first;
        known->second = std::min(known->second, ratio);
      }
    }
  std::vector<std::pair<double, std::string>> ordered;
  for (const auto& [name, ratio] : slower) ordered.emplace_back(ratio, name);
  std::ranges::sort(ordered);

  std::vector<Name> mine(kRoom);
  for (std::size_t i = 0; i < std::min<std::size_t>(ordered.size(), kRoom); ++i)
    ordered[i].second.copy(mine[i].data(), mine[i].size() - 1);
  const std::vector<Name> all = job.gather(mine);
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < kRoom && static_cast<int>(candidates.size()) < options.alternatives;
       ++i) {
    bool everywhere = all[i][0] != '\0';
    for (auto theirs = all.begin(); theirs != all.end(); theirs += kRoom)
      everywhere = everywhere && ((*theirs)[0] == '\0' ||
                                  std::find(theirs, theirs + kRoom, all[i]) != theirs + kRoom);
    if (everywhere) candidates.push_back({&collective, all[i].data()});
  }
  return candidates;
}

}  // namespace moeccl::perf

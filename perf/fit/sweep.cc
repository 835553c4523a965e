#include "perf/fit/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "perf/fit/candidates.h"

namespace moeccl::perf {
namespace {

constexpr std::uint64_t kStep = 4;
constexpr std::uint64_t kLargest = 64u << 20;
constexpr std::size_t kLargestReceive = 256u << 20;
constexpr double kLongestCall = 1;
constexpr int kExpertsPerRank = 1;
constexpr DataType kType{"float", moecclFloat32, sizeof(float)};

struct Sizes {
  std::uint64_t first, last;
  std::size_t left(std::uint64_t bytes) const {
    std::size_t count = 1;
    while (bytes <= last / kStep) bytes *= kStep, ++count;
    return count;
  }
};

// Least seconds that a size takes that is `step` times the largest so far.
double leastCost(const std::vector<Candidate>& candidates, double step) {
  double seconds = 0;
  for (const Candidate& candidate : candidates) seconds += candidate.last * step * kMinCalls;
  return seconds;
}

}  // namespace

Swept sweep(Team& team, const FitOptions& options, const Subject& subject, double until,
            const std::function<void(std::size_t)>& showSize) {
  Memory& memory = team.job().memory();
  std::vector<std::unique_ptr<Contender>> contenders;
  std::vector<Candidate> candidates;
  for (const std::string& algorithm : subject.algorithms) {
    if (subject.comm != nullptr)
      contenders.push_back(
          makeContender(*subject.collective, subject.world, algorithm, subject.comm, memory));
    candidates.push_back({algorithm, subject.comm != nullptr ? contenders.back().get() : nullptr});
  }

  const auto sendBlocks = static_cast<std::size_t>(subject.collective->sendBlocks(subject.world));
  const auto recvBlocks = static_cast<std::size_t>(subject.collective->recvBlocks(subject.world));
  const Sizes sizes{options.minBytes, options.maxBytes > 0 ? options.maxBytes : kLargest};
  Buffer send(memory), recv(memory);
  Swept swept;
  // The points of one size, until `end`.
  const auto measure = [&](const std::vector<Candidate>& some, std::size_t count, double end) {
    const std::size_t bytes = count * sizeof(float) * sendBlocks;
    showSize(bytes);
    if (subject.comm != nullptr) {
      send.atLeast(bytes);
      recv.atLeast(count * sizeof(float) * recvBlocks);
    }
    std::vector<Turn> turns;
    for (const Candidate& candidate : some)
      turns.push_back({[&, contender = candidate.contender] {
        if (contender != nullptr) contender->exchange(send.data(), recv.data(), count, kType);
      }});
    takeTurns(team, turns, {options.steadyPercent, options.maxRepetitions, end}, subject.counts);
    std::vector<Point> points;
    for (std::size_t i = 0; i < turns.size(); ++i)
      points.push_back({some[i].algorithm, bytes, medianOf(turns[i].seconds), turns[i].steady});
    swept.points.insert(swept.points.end(), points.begin(), points.end());
    return points;
  };

  std::size_t smaller = 0;  // the count before
  for (std::uint64_t size = sizes.first; size <= sizes.last; size *= kStep) {
    const std::size_t count = size / sizeof(float) / sendBlocks;
    if (count == 0) continue;
    if (count > kLargestReceive / sizeof(float) / recvBlocks) break;
    if (options.maxBytes == 0)
      std::erase_if(candidates, [](const Candidate& candidate) {
        return candidate.last * static_cast<double>(kStep) > kLongestCall;
      });
    if (candidates.empty()) break;
    if (team.elapsed() + leastCost(candidates, kStep) >= until) {
      swept.cutAt = count * sizeof(float) * sendBlocks;
      break;
    }
    // Less than the same for each: one more size says more than closer medians of those before.
    const auto share = [&] {
      const double now = team.elapsed();
      return now + (until - now) / static_cast<double>(2 * sizes.left(size) - 1);
    };
    const double before = fastestOf(candidates);
    const std::vector<Point> points = measure(candidates, count, share());
    for (std::size_t i = 0; i < points.size(); ++i) {
      candidates[i].before = candidates[i].last;
      candidates[i].last = points[i].seconds.value;
    }
    const auto between = static_cast<std::size_t>(
        std::sqrt(static_cast<double>(smaller) * static_cast<double>(count)));
    if (const std::vector<Candidate> some = contested(candidates);
        !some.empty() && between > smaller && between < count &&
        team.elapsed() + leastCost(some, 1) < until)
      measure(some, between, share());
    smaller = count;
    dropHopeless(candidates, before);
    if (size > sizes.last / kStep) break;
  }
  return swept;
}

std::vector<std::string> algorithmsFor(const Job& job, const FitOptions& options,
                                       const Collective& collective,
                                       const moecclCluster_t* cluster) {
  constexpr int kRoom = 64;
  using Name = std::array<char, MOECCL_ALGORITHM_NAME_BYTES>;
  std::map<std::string, double> slower;  // than the fastest, at the size where it is best
  if (cluster != nullptr)
    for (const std::uint64_t bytes : {options.minBytes, std::uint64_t{64} << 10,
                                      options.maxBytes > 0 ? options.maxBytes : kLargest}) {
      std::array<moecclAlgorithmChoice_t, kRoom> choices{};
      int n = kRoom;
      require(moecclSelectAlgorithm(cluster, std::string(collective.name).c_str(), bytes,
                                    kExpertsPerRank, choices.data(), &n),
              "ask for algorithms", nullptr);
      for (int i = 0; i < std::min(n, kRoom); ++i) {
        const auto& choice = choices[static_cast<std::size_t>(i)];
        const double ratio = choice.seconds / choices[0].seconds;
        const auto known = slower.try_emplace(choice.algorithm, ratio).first;
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
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRoom && static_cast<int>(names.size()) < options.alternatives; ++i) {
    bool everywhere = all[i][0] != '\0';
    for (auto theirs = all.begin(); theirs != all.end(); theirs += kRoom)
      everywhere = everywhere && ((*theirs)[0] == '\0' ||
                                  std::find(theirs, theirs + kRoom, all[i]) != theirs + kRoom);
    if (everywhere) names.emplace_back(all[i].data());
  }
  return names;
}

}  // namespace moeccl::perf

// Compares what all programs use of the processors of ranks, by /proc/stat, with what the ranks use
// themselves, by getrusage.
#include "perf/fit/processors.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <tuple>

namespace moeccl::perf {
namespace {

// Those are on one machine who have the same of it.
struct Machine {
  std::int64_t started = 0;      // in seconds since 1970; 0: unknown
  std::array<char, 33> id = {};  // of the installed system
  bool operator<(const Machine& other) const {
    return std::tie(started, id) < std::tie(other.started, other.id);
  }
};

// Nodes of an emulated cluster have host names and boot ids of their own, but one /proc/stat and
// /etc.
Machine thisMachine() {
  Machine machine;
  std::ifstream stat("/proc/stat");
  std::string word;
  while (stat >> word)
    if (word == "btime") stat >> machine.started;
  std::ifstream("/etc/machine-id").getline(machine.id.data(), machine.id.size());
  return machine;
}

// What one rank knows of where it runs.
struct Place {
  Machine machine;
  cpu_set_t allowed;
};

Place placeOfThisRank() {
  Place place{thisMachine(), {}};
  CPU_ZERO(&place.allowed);
  sched_getaffinity(0, sizeof place.allowed, &place.allowed);
  return place;
}

double secondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

Processors::Processors(const Job& job) : job_(job) {
  const std::vector<Place> places = job.gather(std::vector<Place>{placeOfThisRank()});
  std::map<Machine, std::size_t> numbers;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto [place, isNew] = numbers.try_emplace(places[rank].machine, machines_.size());
    if (isNew) machines_.emplace_back();
    machines_[place->second].push_back(static_cast<int>(rank));
  }
  for (const std::vector<int>& ranks : machines_) {
    std::vector<bool> allowed(CPU_SETSIZE);
    for (const int rank : ranks)
      for (std::size_t cpu = 0; cpu < allowed.size(); ++cpu)
        if (CPU_ISSET(cpu, &places[static_cast<std::size_t>(rank)].allowed)) allowed[cpu] = true;
    processors_.push_back(static_cast<int>(std::ranges::count(allowed, true)));
    if (std::ranges::find(ranks, job.rank()) != ranks.end()) counted_ = allowed;
  }
  begin();
}

Processors::Mine Processors::now() const {
  const std::chrono::duration<double> clock = std::chrono::steady_clock::now().time_since_epoch();
  std::ifstream stat("/proc/stat");
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  return {clock.count(), processorTimes(stat, counted_),
          secondsOf(own.ru_utime) + secondsOf(own.ru_stime)};
}

void Processors::begin() { begin_ = now(); }

std::string Processors::end() {
  const Mine end = now();
  const Mine passed{end.seconds - begin_.seconds,
                    {end.all.used - begin_.all.used, end.all.stolen - begin_.all.stolen},
                    end.own - begin_.own};
  const std::vector<Mine> all = job_.gather(std::vector<Mine>{passed});
  std::string text;
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    const Mine& first = all[static_cast<std::size_t>(machines_[i][0])];
    MachineUse use{machines_[i][0], static_cast<int>(machines_[i].size()),
                   processors_[i],  first.seconds,
                   first.all,       0};
    for (const int rank : machines_[i]) use.own += all[static_cast<std::size_t>(rank)].own;
    if (isBusy(use)) text += (text.empty() ? "" : "; ") + textOf(use);
  }
  return text;
}

}  // namespace moeccl::perf

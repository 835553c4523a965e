#include "perf/layers/settings.h"

#include <array>

namespace moeccl::perf::layers {
namespace {

constexpr std::array kScheduleNames = {"auto", "baseline", "S1", "S2", "PPMoE"};

// By schedule: the algorithms of its exchanges, one collective after the other, each time with the
// others left to the library. Those that the library chooses itself are not timed again.
const std::vector<std::vector<std::string>> kAlgorithms = {
    {},
    {"alltoall=linear", "alltoall=pairwise", "alltoall=hierarchical", "allreduce=ring",
     "allreduce=halving_doubling", "allreduce=hierarchical"},
    {"dispatch=flat;combine=flat", "dispatch=dedup;combine=dedup", "allgather=ring",
     "allgather=hierarchical"},
    {"splitdispatch=flat;combineallgather=pipelined",
     "splitdispatch=flat;combineallgather=sequential",
     "splitdispatch=dedup;combineallgather=pipelined",
     "splitdispatch=dedup;combineallgather=sequential"},
    {"allreduce=ring", "allreduce=halving_doubling", "allreduce=hierarchical"},
};

}  // namespace

std::string Setting::name() const {
  return scheduleName(schedule) + (algorithms.empty() ? "" : " " + algorithms);
}

std::string scheduleName(moecclSchedule_t schedule) {
  const auto index = static_cast<std::size_t>(schedule);
  return index < kScheduleNames.size() ? kScheduleNames[index] : "schedule" + std::to_string(index);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int i = moecclScheduleBaseline; i < moecclNumSchedules; ++i) {
    const auto schedule = static_cast<moecclSchedule_t>(i);
    all.push_back({schedule, ""});
    if (static_cast<std::size_t>(i) < kAlgorithms.size())
      for (const std::string& algorithms : kAlgorithms[static_cast<std::size_t>(i)])
        all.push_back({schedule, algorithms});
  }
  all.push_back({moecclScheduleAuto, ""});
  return all;
}

}  // namespace moeccl::perf::layers

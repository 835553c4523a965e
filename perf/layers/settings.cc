#include "perf/layers/settings.h"

namespace moeccl::perf::layers {
namespace {

// By schedule: the algorithms of its exchanges, one collective after the other, each time with the
// others left to the library. Those that the library chooses itself are not timed again.
const std::vector<std::vector<std::string>> kAlgorithms = {
    {},
    {"alltoall=linear", "alltoall=pairwise", "alltoall=hierarchical", "allreduce=ring",
     "allreduce=halving_doubling", "allreduce=hierarchical"},
    {"dispatch=flat;combine=flat", "dispatch=dedup;combine=dedup",
     "dispatch=hierarchical;combine=hierarchical", "allgather=ring", "allgather=hierarchical"},
    {"splitdispatch=flat;combineallgather=pipelined",
     "splitdispatch=flat;combineallgather=sequential",
     "splitdispatch=dedup;combineallgather=pipelined",
     "splitdispatch=dedup;combineallgather=sequential",
     "splitdispatch=hierarchical;combineallgather=hierarchical"},
    {"allreduce=ring", "allreduce=halving_doubling", "allreduce=hierarchical"},
};

}  // namespace

std::string Setting::name() const {
  return scheduleName(schedule) + (algorithms.empty() ? "" : " " + algorithms) +
         (tokenRouting == 0 ? "" : " tokenRouting=" + std::to_string(tokenRouting));
}

std::string scheduleName(moecclSchedule_t schedule) {
  const char* const name = moecclScheduleName(schedule);
  return name != nullptr ? name : "schedule" + std::to_string(schedule);
}

std::vector<moecclSchedule_t> everySchedule() {
  std::vector<moecclSchedule_t> all;
  for (int i = moecclScheduleBaseline; moecclScheduleName(static_cast<moecclSchedule_t>(i)); ++i)
    all.push_back(static_cast<moecclSchedule_t>(i));
  return all;
}

std::vector<Setting> settings(bool dropless) {
  std::vector<Setting> all;
  for (const moecclSchedule_t schedule : everySchedule()) {
    all.push_back({schedule, ""});
    for (const int tokenRouting : {-1, 1})
      if (dropless) all.push_back({schedule, "", tokenRouting});
    if (dropless) continue;
    if (const auto i = static_cast<std::size_t>(schedule); i < kAlgorithms.size())
      for (const std::string& algorithms : kAlgorithms[i]) all.push_back({schedule, algorithms});
  }
  all.push_back({moecclScheduleAuto, ""});
  return all;
}

}  // namespace moeccl::perf::layers

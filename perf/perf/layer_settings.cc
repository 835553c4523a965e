// Names schedules, and lists the settings that are measured: each schedule with automatic
// algorithms, and with each algorithm that its exchanges can go by.
#include "perf/perf/layer_settings.h"

#include <map>
#include <optional>
#include <set>

#include "perf/common/choices.h"

namespace moeccl::perf::layers {
namespace {

// Each algorithm that an exchange of the schedule can go by, for all exchanges that have one of
// that name, with the others left to the library: "dispatch=flat;combine=flat".
std::vector<std::string> algorithmsOf(const Layer& layer, moecclSchedule_t schedule,
                                      moecclPass_t pass, const std::vector<int>& ranksPerNode) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = static_cast<int>(ranksPerNode.size());
  cluster.ranksPerNode = ranksPerNode.data();
  cluster.shape = layer.grid;
  const moecclMoeConfig_t config = layer.config(schedule, pass);
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = pass;
  std::string refused;
  const Choices choices(query, &refused);
  if (choices.count() == 0) return {};
  std::map<std::string, std::size_t> bytes;  // by collective
  for (const moecclChoice_t& exchange : choices.exchanges(0))
    bytes.emplace(exchange.collective, exchange.bytes);
  std::map<std::string, std::set<std::string>> collectives;  // by algorithm
  for (const auto& [collective, size] : bytes)
    for (const Prediction& it : algorithmChoices(cluster, collective, size, 1))
      collectives[it.name.substr(0, it.name.find(':'))].insert(collective);
  std::vector<std::string> all;
  for (const auto& [algorithm, having] : collectives) {
    std::string& text = all.emplace_back();
    for (const std::string& collective : having)
      text += (text.empty() ? "" : ";") + collective + "=" + algorithm;
  }
  return all;
}

const std::vector<std::string> kAllSchedules = {"all"};

std::optional<moecclSchedule_t> scheduleNamed(const std::string& name) {
  if (name == scheduleName(moecclScheduleAuto)) return moecclScheduleAuto;
  for (const moecclSchedule_t schedule : everySchedule())
    if (name == scheduleName(schedule)) return schedule;
  return std::nullopt;
}

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

std::string problemOf(const std::vector<std::string>& schedules) {
  if (schedules == kAllSchedules) return "";
  std::string known = "all or auto";
  for (const moecclSchedule_t schedule : everySchedule()) known += ", " + scheduleName(schedule);
  for (const std::string& name : schedules)
    if (!scheduleNamed(name))
      return "--schedules: \"" + name + "\" is none; give " + known + " by commas";
  return "";
}

std::vector<Setting> settings(const Layer& layer, const Options& options,
                              const std::vector<int>& ranksPerNode) {
  std::vector<Setting> all;
  if (options.schedules != kAllSchedules) {
    for (const std::string& name : options.schedules) all.push_back({*scheduleNamed(name), ""});
    return all;
  }
  for (const moecclSchedule_t schedule : everySchedule()) {
    all.push_back({schedule, ""});
    if (layer.isDropless())
      for (const int tokenRouting : {-1, 1}) all.push_back({schedule, "", tokenRouting});
    else
      for (const std::string& it : algorithmsOf(layer, schedule, options.pass, ranksPerNode))
        all.push_back({schedule, it});
  }
  all.push_back({moecclScheduleAuto, ""});
  return all;
}

}  // namespace moeccl::perf::layers

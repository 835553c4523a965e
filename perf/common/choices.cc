#include "perf/common/choices.h"

#include <stdexcept>

namespace moeccl::perf {
namespace {

void require(moecclResult_t result, const char* what) {
  if (result != moecclSuccess)
    throw std::runtime_error(std::string("cannot ") + what + ": " + moecclGetErrorString(result) +
                             ": " + moecclGetLastError(nullptr));
}

}  // namespace

ScheduleChoices::ScheduleChoices(const moecclScheduleQuery_t& query)
    : ScheduleChoices(query, nullptr) {}

ScheduleChoices::ScheduleChoices(const moecclScheduleQuery_t& query, std::string* refused) {
  moecclScheduleChoices_t made = nullptr;
  const moecclResult_t result = moecclSelectSchedule(&query, &made);
  if (result == moecclInvalidArgument && refused != nullptr) {
    *refused = moecclGetLastError(nullptr);
    return;
  }
  require(result, "ask for schedules");
  handle_.reset(made);
  require(moecclScheduleChoicesCount(made, &count_), "count schedules");
}

moecclScheduleChoice_t ScheduleChoices::choice(int index) const {
  moecclScheduleChoice_t choice = MOECCL_SCHEDULE_CHOICE_INITIALIZER;
  require(moecclScheduleChoicesGet(handle_.get(), index, &choice), "ask for a schedule");
  return choice;
}

std::vector<moecclScheduleExchange_t> ScheduleChoices::exchanges(int index) const {
  std::vector<moecclScheduleExchange_t> all;
  const int count = choice(index).nExchanges;
  for (int i = 0; i < count; ++i) {
    all.push_back(MOECCL_SCHEDULE_EXCHANGE_INITIALIZER);
    require(moecclScheduleChoicesGetExchange(handle_.get(), index, i, &all.back()),
            "ask for an exchange");
  }
  return all;
}

std::string ScheduleChoices::text(int index) const {
  std::string text;
  const std::vector<moecclScheduleExchange_t> all = exchanges(index);
  for (const moecclScheduleExchange_t& exchange : all) {
    if (exchange.pass != all.front().pass) break;
    if (!text.empty()) text += ", ";
    ((text += exchange.phase) += ": ") += exchange.algorithm;
  }
  return text;
}

std::vector<PredictedAlgorithm> algorithmChoices(const moecclCluster_t& cluster,
                                                 const std::string& collective, std::size_t bytes,
                                                 int expertsPerRank) {
  moecclAlgorithmChoices_t made = nullptr;
  require(moecclSelectAlgorithm(&cluster, collective.c_str(), bytes, expertsPerRank, &made),
          "ask for algorithms");
  const std::unique_ptr<moecclAlgorithmChoices, decltype(&moecclAlgorithmChoicesDestroy)> choices(
      made, moecclAlgorithmChoicesDestroy);
  int count = 0;
  require(moecclAlgorithmChoicesCount(made, &count), "count algorithms");
  std::vector<PredictedAlgorithm> all;
  for (int i = 0; i < count; ++i) {
    moecclAlgorithmChoice_t choice = MOECCL_ALGORITHM_CHOICE_INITIALIZER;
    require(moecclAlgorithmChoicesGet(made, i, &choice), "ask for an algorithm");
    all.push_back({choice.algorithm, choice.seconds, choice.alpha, choice.beta});
  }
  return all;
}

}  // namespace moeccl::perf

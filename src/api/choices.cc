// What was found, handed out.
#include "src/api/choices.h"

#include "src/api/boundary.h"
#include "src/structs.h"
#include "src/text.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclAlgorithmChoice_t> kAlgorithmChoice = {
    "choice", "MOECCL_ALGORITHM_CHOICE_INITIALIZER", MOECCL_ALGORITHM_CHOICE_MAGIC,
    MOECCL_END_OF(moecclAlgorithmChoice_t, digest), MOECCL_END_OF(moecclAlgorithmChoice_t, digest)};
constexpr StructKind<moecclScheduleChoice_t> kScheduleChoice = {
    "choice", "MOECCL_SCHEDULE_CHOICE_INITIALIZER", MOECCL_SCHEDULE_CHOICE_MAGIC,
    MOECCL_END_OF(moecclScheduleChoice_t, nExchanges),
    MOECCL_END_OF(moecclScheduleChoice_t, nExchanges)};
constexpr StructKind<moecclScheduleExchange_t> kExchange = {
    "it", "MOECCL_SCHEDULE_EXCHANGE_INITIALIZER", MOECCL_SCHEDULE_EXCHANGE_MAGIC,
    MOECCL_END_OF(moecclScheduleExchange_t, digest),
    MOECCL_END_OF(moecclScheduleExchange_t, digest)};

template <typename T>
const T& at(const std::vector<T>& all, int index, const char* argument, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= all.size())
    throw Error(moecclInvalidArgument, stringf("%s is %d; there are %zu %s, counted from 0",
                                               argument, index, all.size(), what));
  return all[static_cast<std::size_t>(index)];
}

const std::vector<AlgorithmAnswer>& allOf(moecclAlgorithmChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelectAlgorithm made");
  return choices->all;
}

const ScheduleAnswers& allOf(moecclScheduleChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelectSchedule made");
  return *choices->all;
}

template <typename Choices>
moecclResult_t count(const char* function, Choices choices, int* nChoices) {
  return boundary(function, nullptr, [&] {
    const auto& all = allOf(choices);
    require(nChoices != nullptr, "nChoices is NULL; pass where to store the number of choices");
    *nChoices = static_cast<int>(all.size());
  });
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;

moecclResult_t moecclAlgorithmChoicesCount(moecclAlgorithmChoices_t choices, int* nChoices) {
  return moeccl::count("moecclAlgorithmChoicesCount", choices, nChoices);
}

moecclResult_t moecclAlgorithmChoicesGet(moecclAlgorithmChoices_t choices, int index,
                                         moecclAlgorithmChoice_t* choice) {
  return boundary("moecclAlgorithmChoicesGet", nullptr, [&] {
    const auto& answer = moeccl::at(moeccl::allOf(choices), index, "index", "choices");
    moecclAlgorithmChoice_t ours = answer.choice;
    ours.algorithm = answer.algorithm.c_str();
    writeStruct(moeccl::kAlgorithmChoice, ours, choice);
  });
}

moecclResult_t moecclAlgorithmChoicesDestroy(moecclAlgorithmChoices_t choices) {
  delete choices;
  return moecclSuccess;
}

moecclResult_t moecclScheduleChoicesCount(moecclScheduleChoices_t choices, int* nChoices) {
  return moeccl::count("moecclScheduleChoicesCount", choices, nChoices);
}

moecclResult_t moecclScheduleChoicesGet(moecclScheduleChoices_t choices, int index,
                                        moecclScheduleChoice_t* choice) {
  return boundary("moecclScheduleChoicesGet", nullptr, [&] {
    const auto& answer = moeccl::at(moeccl::allOf(choices), index, "index", "choices");
    writeStruct(moeccl::kScheduleChoice, answer.choice, choice);
  });
}

moecclResult_t moecclScheduleChoicesGetExchange(moecclScheduleChoices_t choices, int index,
                                                int exchange, moecclScheduleExchange_t* it) {
  return boundary("moecclScheduleChoicesGetExchange", nullptr, [&] {
    const auto& answer = moeccl::at(moeccl::allOf(choices), index, "index", "choices");
    const auto& found = moeccl::at(answer.exchanges, exchange, "exchange", "exchanges");
    moecclScheduleExchange_t ours = found.it;
    ours.collective = found.collective.c_str();
    ours.algorithm = found.algorithm.c_str();
    writeStruct(moeccl::kExchange, ours, it);
  });
}

moecclResult_t moecclScheduleChoicesDestroy(moecclScheduleChoices_t choices) {
  delete choices;
  return moecclSuccess;
}

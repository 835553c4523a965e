// What was found, handed out.
#include "src/moe/schedule_choices.h"

#include "src/base/boundary.h"
#include "src/base/structs.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclScheduleChoice_t> kScheduleChoice = {
    "choice", "MOECCL_SCHEDULE_CHOICE_INITIALIZER", MOECCL_SCHEDULE_CHOICE_MAGIC,
    MOECCL_END_OF(moecclScheduleChoice_t, nExchanges),
    MOECCL_END_OF(moecclScheduleChoice_t, tokenRouting)};
constexpr StructKind<moecclScheduleExchange_t> kExchange = {
    "it", "MOECCL_SCHEDULE_EXCHANGE_INITIALIZER", MOECCL_SCHEDULE_EXCHANGE_MAGIC,
    MOECCL_END_OF(moecclScheduleExchange_t, digest),
    MOECCL_END_OF(moecclScheduleExchange_t, digest)};

const ScheduleAnswers& allOf(moecclScheduleChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelectSchedule made");
  return *choices->all;
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;

moecclResult_t moecclScheduleChoicesCount(moecclScheduleChoices_t choices, int* nChoices) {
  return boundary("moecclScheduleChoicesCount", nullptr, [&] {
    const auto& all = moeccl::allOf(choices);
    moeccl::require(nChoices != nullptr,
                    "nChoices is NULL; pass where to store the number of choices");
    *nChoices = static_cast<int>(all.size());
  });
}

moecclResult_t moecclScheduleChoicesGet(moecclScheduleChoices_t choices, int index,
                                        moecclScheduleChoice_t* choice) {
  return boundary("moecclScheduleChoicesGet", nullptr, [&] {
    const auto& answer = moeccl::elementAt(moeccl::allOf(choices), index, "index", "choices");
    writeStruct(moeccl::kScheduleChoice, answer.choice, choice);
  });
}

moecclResult_t moecclScheduleChoicesGetExchange(moecclScheduleChoices_t choices, int index,
                                                int exchange, moecclScheduleExchange_t* it) {
  return boundary("moecclScheduleChoicesGetExchange", nullptr, [&] {
    const auto& answer = moeccl::elementAt(moeccl::allOf(choices), index, "index", "choices");
    const auto& found = moeccl::elementAt(answer.exchanges, exchange, "exchange", "exchanges");
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

// What moecclScheduleChoices_t points to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moeccl/select.h"

namespace moeccl {

// Their texts are set when they are handed out.
struct ScheduleAnswer {
  struct Exchange {
    moecclScheduleExchange_t it;
    std::string collective, algorithm;
  };
  moecclScheduleChoice_t choice;
  std::vector<Exchange> exchanges;
};
using ScheduleAnswers = std::vector<ScheduleAnswer>;

}  // namespace moeccl

struct moecclScheduleChoices {
  std::shared_ptr<const moeccl::ScheduleAnswers> all;  // which the grid remembers too
};

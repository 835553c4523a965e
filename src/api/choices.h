// What moecclAlgorithmChoices_t and moecclScheduleChoices_t point to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moeccl/model.h"

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

struct AlgorithmAnswer {
  moecclAlgorithmChoice_t choice;
  std::string algorithm;
};

}  // namespace moeccl

struct moecclAlgorithmChoices {
  std::vector<moeccl::AlgorithmAnswer> all;
};

struct moecclScheduleChoices {
  std::shared_ptr<const moeccl::ScheduleAnswers> all;  // which the grid remembers too
};

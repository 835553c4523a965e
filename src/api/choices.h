// What moecclAlgorithmChoices_t points to.
#pragma once

#include <string>
#include <vector>

#include "moeccl/model.h"

namespace moeccl {

struct AlgorithmAnswer {
  moecclAlgorithmChoice_t choice;
  std::string algorithm;
};

}  // namespace moeccl

struct moecclAlgorithmChoices {
  std::vector<moeccl::AlgorithmAnswer> all;
};

// What moecclChoices_t points to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moeccl/model.h"

namespace moeccl {

// A choice, or an exchange of one. Its texts are set when it is handed out.
struct Answer {
  moecclChoice_t it = MOECCL_CHOICE_INITIALIZER;
  std::string name;
  std::string collective = {};         // of an exchange
  std::vector<Answer> exchanges = {};  // of a schedule
};
using Answers = std::vector<Answer>;

// As moecclChoice_t's source.
inline const char* sourceOf(bool measured) { return measured ? "curves" : "links"; }

// "S1 in 0.812 ms, by links; then S2 in 0.934 ms". `then`: the runner-up, where there is one.
std::string firstLine(const Answer& answer, const Answer* then);
// All answers as one JSON object.
std::string asJson(const Answers& answers);

}  // namespace moeccl

struct moecclChoices {
  std::shared_ptr<const moeccl::Answers> all;  // which a grid may remember too
};

// Answers to questions about algorithms and schedules: as values, as a line of text, and as JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moeccl/model.h"
#include "src/model/cost_model.h"
#include "src/model/layer_question.h"

namespace moeccl {

// A choice, or an exchange of one. Its texts are set when it is handed out.
struct Answer {
  moecclChoice_t it = MOECCL_CHOICE_INITIALIZER;
  std::string name;
  std::string collective = {};         // of an exchange
  std::vector<Answer> exchanges = {};  // of a schedule
};
using Answers = std::vector<Answer>;

Answer answerOf(const CostModel::Estimate& estimate);
// The algorithms of a collective, the fastest first, without those that `serves` is false of.
// `given`, `bytes`: as CostModel::estimates() takes them.
Answers algorithmAnswers(CostModel& model, Collective collective, const AlgorithmChoice& given,
                         double bytes, const std::function<bool(const AlgorithmChoice&)>& serves);
// The schedules of a layer, the fastest first, each with its exchanges.
Answers scheduleAnswers(LayerModel& model, const Subject& subject);

// "S1 in 0.812 ms, by links; then S2 in 0.934 ms". `then`: the runner-up, where there is one.
std::string firstLine(const Answer& answer, const Answer* then);
// A line for each algorithm.
std::string algorithmLines(const Answers& answers);
// All answers as one JSON object.
std::string asJson(const Answers& answers);

}  // namespace moeccl

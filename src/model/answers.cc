// Makes answers of estimates, and prints them as lines or as JSON.
#include "src/model/answers.h"

#include <cmath>

#include "algorithms/choice.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// As moecclChoice_t's source.
const char* sourceOf(bool measured) { return measured ? "curves" : "links"; }

constexpr moecclGroup_t asGroup(GroupKind kind) {
  return kind == GroupKind::mp    ? moecclGroupMp
         : kind == GroupKind::ep  ? moecclGroupEp
         : kind == GroupKind::esp ? moecclGroupEsp
                                  : moecclGroupWorld;
}

Answer answerOf(const LayerModel::ExchangeEstimate& estimate) {
  const Exchange& exchange = estimate.exchange;
  Answer answer;
  answer.it.source = sourceOf(estimate.measured);
  answer.it.seconds = estimate.seconds;
  answer.it.bytesBetween = estimate.bytesBetween;
  answer.it.digest = estimate.digest;
  answer.it.calls = exchange.times;
  answer.it.phase = exchange.name;
  answer.it.bytes = static_cast<std::size_t>(exchange.bytes);
  answer.it.group = asGroup(exchange.group);
  answer.it.pass = estimate.pass == Pass::forward ? moecclPassForward : moecclPassBackward;
  const bool routed = exchange.routed != Routed::no;
  answer.name = routed ? std::string(estimate.route) : textOf(estimate.choice);
  answer.collective = !routed ? std::string(nameOf(exchange.collective))
                      : exchange.routed == Routed::dispatch ? "tokendispatch"
                                                            : "tokencombine";
  return answer;
}

const char* nameOf(moecclGroup_t group) {
  return group == moecclGroupMp    ? "mp"
         : group == moecclGroupEp  ? "ep"
         : group == moecclGroupEsp ? "esp"
                                   : "world";
}

// The members of an object, in their order.
class Object {
 public:
  void add(const char* name, const std::string& json) {
    text_ += (text_.empty() ? "\"" : ", \"") + std::string(name) + "\": " + json;
  }
  void text(const char* name, const std::string& value) { add(name, '"' + value + '"'); }
  // JSON has no infinity, which is what cannot run takes.
  void number(const char* name, double value) {
    add(name, std::isfinite(value) ? numberText(value) : "null");
  }
  std::string take() { return '{' + text_ + '}'; }

 private:
  std::string text_;
};

template <typename Print>
std::string array(const Answers& all, Print print) {
  std::string text;
  for (const Answer& each : all) text += (text.empty() ? "" : ",\n    ") + print(each);
  return "[\n    " + text + "]";
}

Object common(const Answer& answer) {
  Object object;
  object.text("name", answer.name);
  object.number("seconds", answer.it.seconds);
  object.text("source", answer.it.source);
  object.number("bytesBetween", answer.it.bytesBetween);
  return object;
}

std::string exchangeJson(const Answer& answer) {
  Object object = common(answer);
  object.text("pass", answer.it.pass == moecclPassForward ? "forward" : "backward");
  object.text("phase", answer.it.phase);
  object.text("group", nameOf(answer.it.group));
  object.text("collective", answer.collective);
  object.number("bytes", static_cast<double>(answer.it.bytes));
  object.number("calls", answer.it.calls);
  object.text("digest", stringf("%016llx", static_cast<unsigned long long>(answer.it.digest)));
  return object.take();
}

std::string choiceJson(const Answer& answer) {
  Object object = common(answer);
  if (answer.it.schedule == moecclScheduleAuto) {
    object.number("alpha", answer.it.alpha);
    object.number("beta", answer.it.beta);
    object.text("digest", stringf("%016llx", static_cast<unsigned long long>(answer.it.digest)));
    return object.take();
  }
  object.number("communication", answer.it.communication);
  object.number("chunks", static_cast<double>(answer.it.chunks));
  object.add("tokenRouting", answer.it.tokenRouting != 0 ? "true" : "false");
  object.add("automatic", answer.it.automatic != 0 ? "true" : "false");
  object.add("exchanges", array(answer.exchanges, exchangeJson));
  return object.take();
}

}  // namespace

Answer answerOf(const CostModel::Estimate& estimate) {
  Answer answer;
  answer.name = textOf(estimate.choice);
  answer.it.source = sourceOf(estimate.measured);
  answer.it.seconds = estimate.seconds;
  return answer;
}

Answers algorithmAnswers(CostModel& model, Collective collective, const AlgorithmChoice& given,
                         double bytes, const std::function<bool(const AlgorithmChoice&)>& serves) {
  Answers all;
  for (const CostModel::Estimate& estimate : model.estimates(collective, given, bytes)) {
    if (!serves(estimate.choice)) continue;
    Answer& answer = all.emplace_back(answerOf(estimate));
    answer.it.bytesBetween = model.bytesBetween(collective, given, estimate.choice, bytes);
    answer.it.digest = model.digest(collective, given, estimate.choice);
    const Line line = model.line(collective, given, estimate.choice);
    answer.it.alpha = line.alpha;
    answer.it.beta = line.beta;
  }
  return all;
}

Answers scheduleAnswers(LayerModel& model, const Subject& subject) {
  Answers all;
  for (const LayerModel::Estimate& estimate :
       model.estimates(subject.offered, subject.passes, subject.free)) {
    Answer& answer = all.emplace_back();
    answer.name = nameOf(estimate.shape.schedule);
    answer.it.source = sourceOf(estimate.measured);
    answer.it.seconds = estimate.seconds;
    answer.it.bytesBetween = estimate.bytesBetween;
    answer.it.communication = estimate.communication;
    answer.it.chunks = estimate.shape.chunks;
    answer.it.schedule = estimate.shape.schedule;
    answer.it.tokenRouting = estimate.shape.routed ? 1 : 0;
    answer.it.automatic = estimate.automatic ? 1 : 0;
    answer.it.nExchanges = static_cast<int>(estimate.exchanges.size());
    for (const LayerModel::ExchangeEstimate& exchange : estimate.exchanges)
      answer.exchanges.push_back(answerOf(exchange));
  }
  return all;
}

std::string firstLine(const Answer& answer, const Answer* then) {
  const auto text = [](const Answer& it) {
    return stringf("%s in %.4g ms", it.name.c_str(), it.it.seconds * 1e3);
  };
  return text(answer) + ", by " + answer.it.source +
         (then != nullptr ? "; then " + text(*then) : "; there is no other");
}

std::string algorithmLines(const Answers& answers) {
  std::string text;
  for (const Answer& each : answers)
    text += stringf("%12.3f ms  %-32s %.3e + %.3e * bytes, by %s\n", each.it.seconds * 1e3,
                    each.name.c_str(), each.it.alpha, each.it.beta, each.it.source);
  return text;
}

std::string asJson(const Answers& answers) {
  Object object;
  object.text("answer", answers.empty() ? "" : answers[0].name);
  object.add("choices", array(answers, choiceJson));
  return object.take() + '\n';
}

}  // namespace moeccl

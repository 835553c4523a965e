// Hands out what moecclSelect has found, one choice or exchange at a time, and prints it as a line
// or as JSON.
#include "src/api/choices.h"

#include <cmath>

#include "src/base/boundary.h"
#include "src/base/structs.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclChoice_t> kChoice = {
    "choice", "MOECCL_CHOICE_INITIALIZER", MOECCL_CHOICE_MAGIC, MOECCL_END_OF(moecclChoice_t, pass),
    MOECCL_END_OF(moecclChoice_t, pass)};

const Answers& allOf(moecclChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelect made");
  return *choices->all;
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

std::string firstLine(const Answer& answer, const Answer* then) {
  const auto text = [](const Answer& it) {
    return stringf("%s in %.4g ms", it.name.c_str(), it.it.seconds * 1e3);
  };
  return text(answer) + ", by " + answer.it.source +
         (then != nullptr ? "; then " + text(*then) : "; there is no other");
}

std::string asJson(const Answers& answers) {
  Object object;
  object.text("answer", answers.empty() ? "" : answers[0].name);
  object.add("choices", array(answers, choiceJson));
  return object.take() + '\n';
}

}  // namespace moeccl

using moeccl::boundary;

moecclResult_t moecclChoicesGet(moecclChoices_t choices, int index, int exchange,
                                moecclChoice_t* choice) {
  return boundary("moecclChoicesGet", nullptr, [&] {
    const moeccl::Answer* answer =
        &moeccl::elementAt(moeccl::allOf(choices), index, "index", "choices");
    if (exchange != -1)
      answer = &moeccl::elementAt(answer->exchanges, exchange, "exchange", "exchanges");
    moecclChoice_t ours = answer->it;
    ours.name = answer->name.c_str();
    if (exchange != -1) ours.collective = answer->collective.c_str();
    writeStruct(moeccl::kChoice, ours, choice);
  });
}

moecclResult_t moecclChoicesDestroy(moecclChoices_t choices) {
  delete choices;
  return moecclSuccess;
}

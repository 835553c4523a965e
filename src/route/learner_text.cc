// What a layer has learned, as text: for people, and for its next run.
//
//   moeccl-learned 1
//   layer tokens=64,...
//   alternatives S1 S2
//   current S1
//   counts <changes> <of these recently> <periods astray>
//   seconds <elapsed> <in trials> <of the current one when others were measured>
//   spread <of periods, as a logarithm>
//   corrected 1
//   forbidden PPMoE                          one line each, of what cannot be taken
//   was S2 1.2                               what it was off its prediction, some time ago
//   evidence S1 sure 12 0.001 0.002 ...      or "tried"; how many seconds follow, pass by pass
//   end
#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/model/answers.h"
#include "src/route/learner.h"

namespace moeccl {
namespace {

constexpr const char* kHead = "moeccl-learned";
constexpr int kVersion = 1;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(moecclInvalidArgument, "text is not what this layer can have learned: " + what);
}

// Words of a text, which say what they should have been.
class Words {
 public:
  explicit Words(std::string_view text) : in_(std::string(text)) {}

  std::string word(const char* what) {
    std::string word;
    if (!(in_ >> word)) refuse(std::string("it ends where ") + what + " should be");
    return word;
  }
  void expect(const std::string& word) {
    if (const std::string theirs = this->word(word.c_str()); theirs != word)
      refuse("it says \"" + theirs + "\" where \"" + word + "\" should be");
  }
  void expectHead(const std::string& layer) {
    expect(kHead);
    expect(numberText(kVersion));
    expect("layer");
    expect(layer);
  }
  template <typename Number>
  Number number(const char* what) {
    const std::string word = this->word(what);
    Number number{};
    const char* const end = word.data() + word.size();
    const auto read = std::from_chars(word.data(), end, number);
    // At most a generation in seconds, of which sums and squares are finite.
    if (read.ec != std::errc() || read.ptr != end || !(number >= 0 && number <= Number(1e9)))
      refuse(std::string(what) + " is \"" + word + "\"; it must be a number from 0 to 1e9");
    return number;
  }

 private:
  std::istringstream in_;
};

}  // namespace

std::string Learner::save() const {
  std::string text = stringf("%s %d\nlayer %s\nalternatives", kHead, kVersion, layer_.c_str());
  for (const Alternative& it : alternatives_) text += " " + it.name;
  text += "\ncurrent " + alternatives_[current_].name;
  text += stringf("\ncounts %d %d %d\n", changes_, recent_, strayed_);
  text += "seconds " + numberText(elapsed_) + " " + numberText(spent_) + " " + numberText(anchor_) +
          "\nspread " + numberText(spread_) + stringf("\ncorrected %d\n", corrected_ ? 1 : 0);
  for (std::size_t i = 0; i < alternatives_.size(); ++i) {
    const Evidence& it = evidence_[i];
    if (forbidden_[i] != 0) text += "forbidden " + alternatives_[i].name + "\n";
    if (bias_[i] > 0 && !it.there())
      text += "was " + alternatives_[i].name + " " + numberText(bias_[i]) + "\n";
    if (!it.there()) continue;
    text += "evidence " + alternatives_[i].name + (it.sure ? " sure " : " tried ") +
            numberText(it.phases[0].size() + it.phases[1].size());
    for (const std::vector<double>& pass : it.phases)
      for (const double seconds : pass) text.append(" ").append(numberText(seconds));
    text += "\n";
  }
  return text + "end\n";
}

void Learner::restore(std::string_view text) {
  Words words(text);
  const auto indexOf = [&](const std::string& name) {
    for (std::size_t i = 0; i < alternatives_.size(); ++i)
      if (alternatives_[i].name == name) return i;
    refuse("it tells of " + name + ", under which the layer cannot run");
  };
  words.expectHead(layer_);
  words.expect("alternatives");
  for (const Alternative& it : alternatives_) words.expect(it.name);
  Learner read(layer_, alternatives_, current_, static_cast<int>(ranks_));
  words.expect("current");
  read.current_ = read.trial_ = indexOf(words.word("the schedule"));
  words.expect("counts");
  for (int* count : {&read.changes_, &read.recent_, &read.strayed_})
    *count = words.number<int>("a count");
  words.expect("seconds");
  for (double* seconds : {&read.elapsed_, &read.spent_, &read.anchor_})
    *seconds = words.number<double>("a number of seconds");
  words.expect("spread");
  read.spread_ = words.number<double>("the spread");
  words.expect("corrected");
  read.corrected_ = words.number<int>("corrected") != 0;
  for (std::string word = words.word("end"); word != "end"; word = words.word("end")) {
    const std::size_t which = indexOf(words.word("a schedule"));
    if (word == "forbidden") {
      read.forbid(which);
      continue;
    }
    if (word == "was") {
      read.bias_[which] = words.number<double>("a factor");
      continue;
    }
    if (word != "evidence")
      refuse("it says \"" + word +
             "\" where \"forbidden\", \"was\", \"evidence\" or \"end\" should be");
    Evidence& it = read.evidence_[which];
    const std::string how = words.word("sure or tried");
    if (how != "sure" && how != "tried")
      refuse("it says \"" + how + "\" where \"sure\" or \"tried\" should be");
    it.sure = how == "sure";
    const std::size_t wanted = rows(which, 0) + rows(which, 1);
    if (const auto numbers = words.number<std::size_t>("a count"); numbers != wanted)
      refuse(stringf("it has %zu numbers of %s, whose passes have %zu", numbers,
                     alternatives_[which].name.c_str(), wanted));
    it.seconds = 0;
    for (const std::size_t pass : {0U, 1U}) {
      it.phases[pass].clear();
      for (std::size_t i = 0; i < rows(which, pass); ++i) {
        it.phases[pass].push_back(words.number<double>("a number of seconds"));
        it.seconds += it.phases[pass].back();
      }
    }
  }
  // Steps go on being counted as on all ranks; of what was written before nothing counts.
  read.step_ = step_;
  read.correct();
  *this = std::move(read);
}

std::int64_t tokensIn(std::string_view text) {
  Words words(text);
  for (const std::string& word : {std::string(kHead), numberText(kVersion), std::string("layer")})
    words.expect(word);
  const std::string layer = words.word("the layer"), first = "tokens=";
  std::int64_t tokens = 0;
  const char* const begin = layer.data() + std::min(first.size(), layer.size());
  const auto read = std::from_chars(begin, layer.data() + layer.size(), tokens);
  if (!layer.starts_with(first) || read.ec != std::errc() || tokens < 0)
    refuse("it says \"" + layer + "\" where \"tokens=\" and a number should be");
  return tokens;
}

std::string choiceIn(std::string_view text, const std::string& layer) {
  Words words(text);
  words.expectHead(layer);
  while (words.word("current") != "current") {
  }
  return words.word("the schedule");
}

std::string Learner::explain() const {
  const auto answerOf = [this](std::size_t i) {
    Answer answer;
    answer.name = alternatives_[i].name;
    answer.it.seconds = estimate(i);
    answer.it.source = evidence_[i].there()        ? "learned"
                       : alternatives_[i].measured ? "curves"
                                                   : "links";
    return answer;
  };
  std::optional<Answer> then;
  for (std::size_t i = 0; i < alternatives_.size(); ++i)
    if (i != current_ && forbidden_[i] == 0 && (!then || estimate(i) < then->it.seconds))
      then = answerOf(i);
  std::string text = firstLine(answerOf(current_), then ? &*then : nullptr) + "\n";
  const Evidence& now = evidence_[current_];
  text += stringf("runs under %s, changed %d times; %.2f %% of the time went into trials\n",
                  alternatives_[current_].name.c_str(), changes_,
                  elapsed_ > 0 ? 100 * spent_ / elapsed_ : 0);
  if (!now.there())
    text += "under it nothing is measured yet\n";
  else if (!corrected_)
    text += "the profile is right about links, so none is corrected\n";
  for (std::size_t i = 0; i < kCosts; ++i)
    if (corrections_.of[i] != 1)
      text +=
          stringf("%-16s takes %.3g times what is predicted\n", kCostNames[i], corrections_.of[i]);
  for (std::size_t i = 0; i < alternatives_.size(); ++i)
    text += stringf("%-12s %10.3f ms a step %s, %.3f ms predicted%s\n",
                    alternatives_[i].name.c_str(), estimate(i) * 1e3,
                    !evidence_[i].there() ? "expected"
                    : evidence_[i].sure   ? "measured"
                                          : "in a trial",
                    alternatives_[i].seconds({}) * 1e3,
                    forbidden_[i] != 0 ? "; it cannot be taken" : "");
  for (const std::size_t pass : {0U, 1U})
    for (std::size_t i = 0; i < now.phases[pass].size(); ++i) {
      const auto& phases = alternatives_[current_].phases[pass];
      const bool phase = i < phases.size();
      text += stringf("  %-8s %-32s %9.3f ms, %.3f ms predicted%s\n",
                      pass == 0 ? "forward" : "backward",
                      phase ? phases[i].name.c_str() : "beside all phases",
                      now.phases[pass][i] * 1e3, phase ? phases[i].predicted.seconds() * 1e3 : 0.0,
                      phase && phases[i].beside ? ", beside others" : "");
    }
  return text;
}

}  // namespace moeccl

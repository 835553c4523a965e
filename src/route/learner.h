// What a layer learns of itself, as numbers: what its phases took, by how much predictions were
// off, and which schedule it should run under. It neither communicates nor reads a clock.
//
// Every kPeriod steps ranks add up what they measured, and how they vote; each gets the same sums,
// and with them decides the same. The sum that begins at step n is there at step n + kPeriod:
//
//     step     n - kPeriod ...  measure  ... n         ...          n + kPeriod
//              |                             |                      |
//              apply(sums), write(mine)      apply, write           apply, write
//
// A change takes two periods in which the same schedule is found to be faster, then a vote of
// all ranks that they are ready for it. So ranks that round otherwise can keep each other from a
// change, but never run different schedules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/schedules/schedule.h"
#include "src/model/corrections.h"

namespace moeccl {

class Learner {
 public:
  static constexpr int kPeriod = 16;
  // A trial's steps, the first of which is not measured; and what part of all time they may take.
  static constexpr int kTrialSteps = 3;
  static constexpr double kTrialShare = 0.02;

  // Runs under `first` to begin with. `layer`: a word that tells it from others. The same on all
  // ranks.
  Learner(std::string layer, std::vector<Alternative> alternatives, std::size_t first, int ranks);

  const std::vector<Alternative>& alternatives() const { return alternatives_; }
  // Under which the step runs that has begun, and which the layer has chosen.
  std::size_t running() const { return trialLeft_ > 0 ? trial_ : current_; }
  std::size_t current() const { return current_; }

  // A step begins. True: a period is over, so apply (unless nothing was written) and write follow.
  bool begin();
  // Takes in what a pass took, as PassRun::times has it.
  void record(std::size_t alternative, Pass pass, std::span<const std::int64_t> nanoseconds);

  // How many numbers ranks add up.
  std::size_t size() const { return 2 * block_ + 2 * alternatives_.size(); }
  // Takes in what all ranks wrote last, added up. True: the layer changes; why() says why.
  bool apply(std::span<const std::int64_t> sums);
  // One that the layer should make ready now, before it writes; nothing: none.
  std::optional<std::size_t> wanted() const { return proposed_; }
  void setReady(bool ready) { ready_ = ready; }
  // Writes this rank's numbers.
  void write(std::span<std::int64_t> mine);
  // It is not taken any more. The same on all ranks.
  void forbid(std::size_t alternative) { forbidden_[alternative] = 1; }
  // Changes to that one at once; what was tried, voted or written is void. The same on all ranks.
  void settle(std::size_t alternative);

  // The reason of the last change, for people.
  const std::string& why() const { return why_; }
  // Explains what has been learned, for people.
  std::string explain() const;
  // The same as text, and back. Throws Error (InvalidArgument) where the text is no such, or of
  // other alternatives. The same text on all ranks.
  std::string save() const;
  void restore(std::string_view text);

  const Corrections& corrections() const { return corrections_; }
  // Seconds of a step, as predicted or measured.
  double estimate(std::size_t alternative) const;
  bool wasMeasured(std::size_t alternative) const { return evidence_[alternative].there(); }
  int changes() const { return changes_; }

 private:
  using Index = std::optional<std::size_t>;
  // What all ranks measured of one alternative: means over ranks, of medians over steps.
  struct Evidence {
    std::array<std::vector<double>, 2> phases;  // seconds, and behind them those of no phase
    double seconds = 0;                         // of all of it; 0: none
    bool sure = false;                          // of a whole period, no trial
    bool there() const { return seconds > 0; }
  };
  // What this rank has measured in a period: of each pass up to kPeriod times.
  struct Samples {
    std::array<std::vector<std::int64_t>, 2> times;
    std::array<int, 2> count{}, skip{};
  };

  // How many numbers a pass of the alternative has; 0: it has no such pass.
  std::size_t rows(std::size_t alternative, std::size_t pass) const {
    const auto& phases = alternatives_[alternative].phases[pass];
    return phases.empty() ? 0 : phases.size() + 1;
  }
  void forget(Samples& samples, int skip) const;
  void writeBlock(std::size_t alternative, Samples& samples, int least,
                  std::span<std::int64_t> block);
  Evidence readBlock(std::size_t alternative, std::span<const std::int64_t> block) const;
  void readTrial(std::span<const std::int64_t> block);
  void note(const Evidence& now);
  bool countVotes(std::span<const std::int64_t> votes);
  void change(std::size_t to);
  void correct();
  void propose();
  Index faster() const;
  Index worthTrying() const;

  std::string layer_;
  std::vector<Alternative> alternatives_;
  std::int64_t ranks_;
  std::size_t block_ = 0;  // numbers of one alternative's passes
  std::vector<Evidence> evidence_;
  // By what factor each was off its corrected prediction when it was measured last; 0: never was.
  std::vector<double> bias_;
  std::vector<char> forbidden_;
  std::size_t current_, trial_;
  int trialLeft_ = 0;       // steps, the one that has begun included
  bool trialOpen_ = false;  // what it took is not known yet
  std::int64_t step_ = -1;
  Samples ours_, tried_;
  std::vector<std::int64_t> sorted_;
  Corrections corrections_;
  bool believed_ = false;  // a profile is right about what the current one takes
  bool corrected_ = false;
  double off_ = 1;     // the same of those that are measured, in the mean
  double anchor_ = 0;  // seconds of the current one, when others were measured
  int strayed_ = 0;    // periods in which it took otherwise
  double spread_ = 0;  // by what factor periods differ: its logarithm
  Index leader_;       // that was found to be faster, in so many periods
  int led_ = 0;
  Index proposed_;
  bool proposesTrial_ = false, ready_ = false;
  Index written_;  // of which alternative; nothing: what comes does not count
  bool wroteTrial_ = false;
  bool asked_ = false;              // there was a vote
  double elapsed_ = 0, spent_ = 0;  // seconds, of all and in trials
  int changes_ = 0, recent_ = 0;    // the latter not forgiven yet
  std::string why_;
};

// The number of tokens for which save() gave the text. Throws Error (InvalidArgument).
std::int64_t tokensIn(std::string_view text);
// The schedule that a text of save() names, for a layer that does not learn. Throws as restore()
// does.
std::string choiceIn(std::string_view text, const std::string& layer);

}  // namespace moeccl

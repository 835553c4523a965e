// Keeps the times of a period's passes, corrects predictions by the ranks' medians, and proposes
// changes and trials that ranks then vote on.
#include "src/route/learner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/text.h"

namespace moeccl {
namespace {

// Steps of a pass that must have been measured in a period.
constexpr int kLeastSamples = 4;
// The first passes after a change are not measured: memory is touched, plans are made.
constexpr int kWarmUp = 2, kTrialWarmUp = 1;
// A change needs this gain: kSureGain where a period has measured the schedule, kGain where only a
// trial has or nothing has. Each change multiplies it by kGrowth, up to kMostGain, and is forgiven
// after kForgiven periods. So noise ends by itself. The gain is also at least kSpreads times what
// periods differ by.
constexpr double kSureGain = 0.03, kGain = 0.05, kGrowth = 1.5, kMostGain = 0.5, kSpreads = 2;
constexpr int kForgiven = 256;
constexpr int kPeriodsToLead = 2;
// A profile is right while measured times are within the factor kRight of predicted ones, and right
// again within kRightAgain. Local work beyond kFarOff is corrected all the same.
constexpr double kRight = 1.2, kRightAgain = 1.1, kFarOff = 2;
// Where times stray beyond this factor for kStrayPeriods, what other schedules took is out of date.
// Only by how much they were off their predictions is kept.
constexpr double kStray = 1.3;
constexpr int kStrayPeriods = 2;
// A schedule that should take more than kTried times as long as the current one is not tried. The
// time allowed for a trial is kWorst times what it should take.
constexpr double kTried = 1.5, kWorst = 2;

bool within(double a, double b, double factor) { return a < b * factor && b < a * factor; }

}  // namespace

Learner::Learner(std::string layer, std::vector<Alternative> alternatives, std::size_t first,
                 int ranks)
    : layer_(std::move(layer)),
      alternatives_(std::move(alternatives)),
      ranks_(ranks),
      evidence_(alternatives_.size()),
      bias_(alternatives_.size()),
      forbidden_(alternatives_.size()),
      current_(first),
      trial_(first),
      sorted_(kPeriod) {
  for (const std::size_t pass : {0U, 1U}) {
    std::size_t most = 0;
    for (std::size_t i = 0; i < alternatives_.size(); ++i) most = std::max(most, rows(i, pass));
    block_ += 1 + most;
    for (Samples* samples : {&ours_, &tried_}) samples->times[pass].resize(most * kPeriod);
  }
  forget(ours_, kWarmUp);
  forget(tried_, kTrialWarmUp);
}

void Learner::forget(Samples& samples, int skip) const {
  samples.count = {};
  samples.skip = {skip, skip};
}

bool Learner::begin() {
  if (trialLeft_ > 0) --trialLeft_;
  ++step_;
  return step_ > 0 && step_ % kPeriod == 0;
}

void Learner::record(std::size_t alternative, Pass pass,
                     std::span<const std::int64_t> nanoseconds) {
  const bool tried = trialOpen_ && alternative == trial_;
  if (!tried && alternative != current_) return;
  Samples& samples = tried ? tried_ : ours_;
  const auto index = static_cast<std::size_t>(pass);
  if (samples.skip[index] > 0) {
    --samples.skip[index];
    return;
  }
  int& count = samples.count[index];
  if (count == kPeriod) return;
  std::ranges::copy(nanoseconds, samples.times[index].begin() +
                                     static_cast<std::ptrdiff_t>(nanoseconds.size()) * count++);
}

// Writes for each pass a 1 where samples are enough, then the median of each number, of two samples
// the lower.
void Learner::writeBlock(std::size_t alternative, Samples& samples, int least,
                         std::span<std::int64_t> block) {
  std::size_t at = 0;
  for (const std::size_t pass : {0U, 1U}) {
    const std::size_t rows = this->rows(alternative, pass),
                      most = samples.times[pass].size() / kPeriod;
    const auto count = static_cast<std::size_t>(samples.count[pass]);
    const bool enough = std::cmp_greater_equal(count, least);
    block[at] = enough ? 1 : 0;
    for (std::size_t row = 0; row < rows && enough; ++row) {
      for (std::size_t i = 0; i < count; ++i) sorted_[i] = samples.times[pass][i * rows + row];
      const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>((count - 1) / 2);
      std::nth_element(sorted_.begin(), middle,
                       sorted_.begin() + static_cast<std::ptrdiff_t>(count));
      block[at + 1 + row] = *middle;
    }
    at += 1 + most;
    samples.count[pass] = 0;
  }
}

Learner::Evidence Learner::readBlock(std::size_t alternative,
                                     std::span<const std::int64_t> block) const {
  Evidence evidence;
  std::size_t at = 0;
  for (const std::size_t pass : {0U, 1U}) {
    const std::size_t rows = this->rows(alternative, pass);
    if (rows > 0 && block[at] != ranks_) return {};
    for (std::size_t row = 0; row < rows; ++row) {
      const double seconds =
          static_cast<double>(block[at + 1 + row]) * 1e-9 / static_cast<double>(ranks_);
      evidence.phases[pass].push_back(seconds);
      evidence.seconds += seconds;
    }
    at += 1 + ours_.times[pass].size() / kPeriod;
  }
  return evidence;
}

void Learner::write(std::span<std::int64_t> mine) {
  std::ranges::fill(mine, 0);
  writeBlock(current_, ours_, kLeastSamples, mine.first(block_));
  wroteTrial_ = trialOpen_ && trialLeft_ == 0;
  if (wroteTrial_) writeBlock(trial_, tried_, 1, mine.subspan(block_, block_));
  written_ = current_;
  asked_ = proposed_.has_value();
  if (asked_) {
    const std::size_t vote = 2 * block_ + *proposed_ + (proposesTrial_ ? alternatives_.size() : 0);
    // One rank that is not ready outweighs all others.
    mine[vote] = ready_ ? 1 : -ranks_;
  }
  proposed_.reset();
  ready_ = false;
}

bool Learner::apply(std::span<const std::int64_t> sums) {
  if (!written_) return false;
  const Evidence now = readBlock(*written_, sums.first(block_));
  const bool ours = now.there() && written_ == current_;
  if (now.there()) elapsed_ += now.seconds * kPeriod;
  if (wroteTrial_) readTrial(sums.subspan(block_, block_));
  if (ours) note(now);
  correct();
  if (countVotes(sums.subspan(2 * block_))) return true;
  if (ours && !asked_ && !trialOpen_) propose();
  return false;
}

void Learner::readTrial(std::span<const std::int64_t> block) {
  trialOpen_ = false;
  forget(tried_, kTrialWarmUp);
  Evidence evidence = readBlock(trial_, block);
  if (!evidence.there()) return forbid(trial_);
  spent_ += evidence.seconds * kTrialSteps;
  evidence_[trial_] = std::move(evidence);
}

// Takes in what the current one took in a whole period.
void Learner::note(const Evidence& now) {
  Evidence& known = evidence_[current_];
  const bool strays = known.sure && !within(now.seconds, known.seconds, kStray);
  if (known.sure) {
    const double apart = std::abs(std::log(now.seconds / known.seconds));
    spread_ += (std::min(apart, std::log(kStray)) - spread_) / 4;
  }
  strayed_ = strays ? strayed_ + 1 : 0;
  if (strays && strayed_ < kStrayPeriods) return;
  if (known.sure && !strays) {
    for (const std::size_t pass : {0U, 1U})
      for (std::size_t i = 0; i < known.phases[pass].size(); ++i)
        known.phases[pass][i] = (known.phases[pass][i] + now.phases[pass][i]) / 2;
    known.seconds = (known.seconds + now.seconds) / 2;
  } else {
    known = now;
    known.sure = true;
  }
  if (anchor_ == 0) anchor_ = known.seconds;
  if (!strays && within(known.seconds, anchor_, kStray)) return;
  for (std::size_t i = 0; i < evidence_.size(); ++i)
    if (i != current_) evidence_[i] = {};
  anchor_ = known.seconds;
  strayed_ = 0;
}

bool Learner::countVotes(std::span<const std::int64_t> votes) {
  for (std::size_t i = 0; i < votes.size(); ++i) {
    const std::size_t alternative = i % alternatives_.size();
    if (votes[i] == 0 || forbidden_[alternative] != 0) continue;
    if (votes[i] != ranks_) {
      forbid(alternative);
      continue;
    }
    if (i < alternatives_.size()) {
      change(alternative);
      return true;
    }
    trial_ = alternative;
    trialLeft_ = kTrialSteps;
    trialOpen_ = true;
  }
  return false;
}

void Learner::change(std::size_t to) {
  const std::size_t from = std::exchange(current_, to);
  const Alternative& before = alternatives_[from];
  why_ = stringf("%s instead of %s: that took %.3f ms a step, %.3f ms predicted",
                 alternatives_[to].name.c_str(), before.name.c_str(), estimate(from) * 1e3,
                 before.seconds({}) * 1e3);
  for (std::size_t i = 0; i < kCosts; ++i)
    if (!within(corrections_.of[i], 1, kRightAgain))
      why_ += stringf(", %s %.3g times", kCostNames[i], corrections_.of[i]);
  why_ += stringf("; %s %s %.3f ms", alternatives_[to].name.c_str(),
                  evidence_[to].there() ? "took" : "should take", estimate(to) * 1e3);
  ++changes_;
  ++recent_;
  forget(ours_, kWarmUp);
  leader_.reset();
  led_ = strayed_ = 0;
  anchor_ = evidence_[to].seconds;
  if (evidence_[to].there()) evidence_[to].sure = false;  // it is measured anew
}

void Learner::settle(std::size_t alternative) {
  if (alternative != current_) change(alternative);
  trialLeft_ = 0;
  trialOpen_ = false;
  forget(tried_, kTrialWarmUp);
  proposed_.reset();
  written_.reset();
}

void Learner::correct() {
  std::vector<Observation> observations;
  double off = 0;
  int known = 0;
  for (std::size_t i = 0; i < evidence_.size(); ++i) {
    if (!evidence_[i].there()) continue;
    for (const std::size_t pass : {0U, 1U})
      for (std::size_t j = 0; j < alternatives_[i].phases[pass].size(); ++j) {
        const Alternative::Phase& phase = alternatives_[i].phases[pass][j];
        const double seconds = evidence_[i].phases[pass][j];
        if (!phase.beside && phase.predicted.seconds() > 0)
          observations.push_back({phase.predicted, seconds, seconds / evidence_[i].seconds});
      }
  }
  // A phase's time is in part the wait for others. So a profile whose sum is right is believed,
  // except about local work that is far off. Else local work is what it was measured to be. Where
  // the sum is wrong even then, links are corrected too.
  const Alternative& current = alternatives_[current_];
  const Evidence& now = evidence_[current_];
  const double factor = corrected_ ? kRightAgain : kRight;
  const auto isRight = [&] {
    return now.there()
               ? current.measured && within(now.seconds, current.seconds(corrections_), factor)
               : !corrected_;
  };
  const Corrections all = correctionsOf(observations);
  corrections_ = {};
  believed_ = isRight();
  const double near = believed_ ? kFarOff : kRightAgain;
  for (std::size_t i = kLinkKinds; i < kCosts; ++i)
    if (!within(all.of[i], 1, near)) corrections_.of[i] = all.of[i];
  corrected_ = !isRight();
  for (std::size_t i = 0; i < kLinkKinds && corrected_; ++i) corrections_.of[i] = all.of[i];
  for (std::size_t i = 0; i < evidence_.size(); ++i)
    if (const double predicted = alternatives_[i].seconds(corrections_);
        evidence_[i].there() && predicted > 0) {
      bias_[i] = evidence_[i].seconds / predicted;
      off += std::log(bias_[i]);
      ++known;
    }
  off_ = known > 0 ? std::exp(off / known) : 1;
}

double Learner::estimate(std::size_t alternative) const {
  const Evidence& evidence = evidence_[alternative];
  if (evidence.there()) return evidence.seconds;
  const double off = bias_[alternative] > 0 ? bias_[alternative] : off_;
  return off * alternatives_[alternative].seconds(corrections_);
}

Learner::Index Learner::faster() const {
  const double now = estimate(current_), growth = std::pow(kGrowth, recent_);
  Index best;
  for (std::size_t i = 0; i < alternatives_.size(); ++i) {
    if (i == current_ || forbidden_[i] != 0) continue;
    // A trial must show that a profile whose sum is right is wrong about another schedule.
    if (believed_ && !evidence_[i].there()) continue;
    const double gain = std::min(
        kMostGain, std::max(growth * (evidence_[i].sure ? kSureGain : kGain), kSpreads * spread_));
    if (estimate(i) < now * (1 - gain) && (!best || estimate(i) < estimate(*best))) best = i;
  }
  return best;
}

Learner::Index Learner::worthTrying() const {
  Index best;
  for (std::size_t i = 0; i < alternatives_.size(); ++i) {
    if (i == current_ || forbidden_[i] != 0 || evidence_[i].there()) continue;
    const bool known = alternatives_[i].measured && !corrected_ &&
                       !(believed_ && estimate(i) < (1 - kGain) * estimate(current_));
    if (known || estimate(i) > kTried * estimate(current_) ||
        spent_ + kWorst * kTrialSteps * estimate(i) > kTrialShare * elapsed_)
      continue;
    if (!best || estimate(i) < estimate(*best)) best = i;
  }
  return best;
}

void Learner::propose() {
  if (step_ % (kForgiven * kPeriod) == 0) recent_ = std::max(0, recent_ - 1);
  const Index found = faster();
  led_ = !found ? 0 : found == leader_ ? led_ + 1 : 1;
  leader_ = found;
  proposesTrial_ = !found;
  if (!found)
    proposed_ = worthTrying();
  else if (led_ >= kPeriodsToLead)
    proposed_ = found;
}

}  // namespace moeccl

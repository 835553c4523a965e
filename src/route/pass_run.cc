// Runs the phases of a pass in order, which wait for streams, and stops at the experts.
#include "src/route/pass_run.h"

#include <algorithm>

namespace moeccl::schedules {
namespace {

const Schedule& scheduleOf(const RowWork& work, bool isForward) {
  return isForward ? work.forward() : *work.backward();
}

}  // namespace

PassRun::Half::Half(const RowWork& work, const Half* forward)
    : binding(scheduleOf(work, forward == nullptr), work.sizes(), work.groups(),
              work.compute().elementBytes(), forward == nullptr ? work.backward() : nullptr,
              forward == nullptr ? nullptr : &forward->binding, work.own() == nullptr),
      experts(static_cast<std::size_t>(
          std::ranges::find(schedule().phases, Kind::experts, &Phase::kind) -
          schedule().phases.begin())) {
  for (std::size_t i = 0; i < schedule().phases.size(); ++i) parts.push_back(partOf(*this, i));
}

PassRun::PassRun(RowWork& work, PassMemory& own, PassMemory& shared)
    : work_(work),
      mover_(work.compute()),
      sizes_(work.sizes()),
      groups_(work.groups()),
      own_(own),
      shared_(shared),
      counts_(static_cast<std::size_t>(work.forward().chunks), Counts(sizes_, groups_)),
      forward_(work, nullptr),
      bound_(counts_.size()),
      ownCounts_(counts_.size(), -1),
      routed_(counts_.size()) {
  if (work.backward() != nullptr) backward_.emplace(work, &forward_);
  makeLayouts(forward_, nullptr);
  if (backward_) {
    makeLayouts(*backward_, &forward_);
    if (work.own() != nullptr) findGradients(*backward_);
  }
  makeStreams();
  makeRoom();
}

void PassRun::makeStreams() {
  std::size_t streams = 0;
  eachHalf([&](const Half& half) {
    streams = std::max(streams, static_cast<std::size_t>(half.schedule().streams));
  });
  for (std::size_t i = 1; i < streams; ++i) sides_.push_back(mover_.sideStream(groups_.world.comm));
  joined_.resize(streams);
  queued_.resize(streams);
}

void PassRun::findGradients(Half& half) {
  for (int i = 0; i < static_cast<int>(half.schedule().tables.size()); ++i) {
    const Table& it = half.schedule().tables[static_cast<std::size_t>(i)];
    if (!isOfWeights(it) || it.role != Role::made ||
        half.binding.place(i).storage == Storage::nothing)
      continue;
    if (std::ranges::none_of(half.schedule().phases, [&](const Phase& phase) {
          return std::ranges::count(phase.reads, i) > 0;
        }))
      half.gradients.push_back(i);
  }
}

void PassRun::start(Pass pass, const Callers& callers, moecclStream_t stream, Part part) {
  half_ = pass == Pass::forward ? &forward_ : &*backward_;
  part_ = part;
  callers_ = callers;
  stream_ = stream;
  next_ = 0;
  expert_ = -1;
  stopped_ = false;
  std::ranges::fill(joined_, -1);
  std::ranges::fill(queued_, -1);
  for (std::size_t i = 0; i < schedule().phases.size(); ++i)
    if (due(i)) setWritten(i, false);
  const bool begins = part == Part::whole || part == Part::tells;
  if (begins) {
    lastExchange_ = "";
    for (Routed& it : routed_) it.weighted = nullptr;
    std::ranges::fill(bound_, 0);
  }
  if (!timed_) return;
  // The experts are what came between the calls.
  if (part == Part::behind) return lap(half_->experts);
  if (begins || pass == Pass::backward) std::ranges::fill(times_, 0);
  last_ = Clock::now();
}

void PassRun::lap(std::size_t phase) {
  if (!timed_) return;
  const Clock::time_point now = Clock::now();
  times_[phase] += std::chrono::nanoseconds(now - last_).count();
  last_ = now;
}

bool PassRun::advance() {
  const std::vector<Phase>& phases = schedule().phases;
  if (stopped_) {
    lap(next_);
    step();
  }
  for (; next_ < phases.size(); step()) {
    if (!due(next_)) continue;
    const Phase& phase = phases[next_];
    if (phase.oneByOne && expert_ < 0) {
      expert_ = 0;
      firstOfExpert_ = next_;
    }
    wait(next_);
    bind(phase);
    if (phase.kind == Kind::experts) {
      setExperts(phase);
      lap(next_);
      return stopped_ = true;
    }
    run(phase);
    lap(next_);
  }
  finish();
  return false;
}

void PassRun::setWritten(std::size_t phase, bool written) {
  for (const int table : schedule().phases[phase].writes)
    half_->written[static_cast<std::size_t>(table)] = written ? 1 : 0;
}

// Goes to the next phase, or back to the first of those that go one by one, for the next expert.
void PassRun::step() {
  stopped_ = false;
  const std::vector<Phase>& phases = schedule().phases;
  if (due(next_)) setWritten(next_, true);
  ++next_;
  if (expert_ < 0 || (next_ < phases.size() && phases[next_].oneByOne)) return;
  if (++expert_ < sizes_.at(Dim::localExperts))
    next_ = firstOfExpert_;
  else
    expert_ = -1;
}

void PassRun::wait(std::size_t index) {
  const Phase& phase = schedule().phases[index];
  bool follows = false;
  for (const int other : phase.after) {
    const Phase& before = schedule().phases[static_cast<std::size_t>(other)];
    if (before.stream == phase.stream) continue;
    // An earlier call has waited for it.
    if (!due(static_cast<std::size_t>(other))) continue;
    follows = true;
    if (before.stream != 0 && joined_[static_cast<std::size_t>(before.stream)] < other)
      join(before.stream, before.name);
  }
  if (phase.stream == 0) return;
  if (follows) side(phase.stream).follow(stream_);
  queued_[static_cast<std::size_t>(phase.stream)] = static_cast<int>(index);
}

void PassRun::join(int stream, const std::string& phase) {
  joined_[static_cast<std::size_t>(stream)] = queued_[static_cast<std::size_t>(stream)];
  check(phase, side(stream).join(stream_));
  for (Routed& it : routed_)
    if (it.weighted != nullptr && it.weighted->stream == stream) takeWeightGradients(it);
  lap(static_cast<std::size_t>(queued_[static_cast<std::size_t>(stream)]));
}

void PassRun::check(const std::string& phase, moecclResult_t result) {
  if (result != moecclSuccess)
    throw ExchangeError(result, phase + ": " + moecclGetLastError(nullptr));
  lastExchange_ = phase.c_str();
}

// Progress of one stream advances all.
void PassRun::progress() {
  for (std::size_t i = 1; i < joined_.size(); ++i)
    if (queued_[i] > joined_[i]) return side(static_cast<int>(i)).progress();
}

void PassRun::abandon() {
  for (std::size_t i = 1; i < joined_.size(); ++i)
    if (queued_[i] > joined_[i]) side(static_cast<int>(i)).join(stream_);
}

void PassRun::run(const Phase& phase) {
  if (phase.routed) return moveRouted(phase);
  switch (phase.kind) {
    case Kind::exchange:
      return exchange(phase);
    case Kind::route:
      return route(phase);
    case Kind::split:
      return split(phase);
    case Kind::join:
      return joinParts(phase);
    case Kind::regroup:
      return regroup(phase);
    case Kind::add:
      return add(phase);
    default:
      return compute(phase);
  }
}

void PassRun::compute(const Phase& phase) {
  for (std::size_t i = 0; i < phase.reads.size(); ++i) reads_[i] = at(phase.reads[i]);
  for (std::size_t i = 0; i < phase.writes.size(); ++i) {
    writes_[i] = at(phase.writes[i]);
    first_[i] = half_->written[static_cast<std::size_t>(phase.writes[i])] == 0;
  }
  const Step step{schedule(),
                  phase,
                  {reads_.data(), phase.reads.size()},
                  {writes_.data(), phase.writes.size()},
                  {first_.get(), phase.writes.size()},
                  expert_,
                  stream_};
  switch (phase.kind) {
    case Kind::gate:
      if (phase.backward) return work_.own()->gateBackward(step);
      if (phase.writes.size() > 2)
        ownCounts_[static_cast<std::size_t>(table(phase.writes[2]).chunk)] = phase.writes[2];
      return work_.gate(step);
    case Kind::permute:
      return phase.backward ? work_.permuteBackward(step) : work_.permute(step);
    case Kind::combine:
      return phase.backward ? work_.combineBackward(step) : work_.combine(step);
    default:
      return phase.backward ? work_.own()->residualBackward(step) : work_.own()->residual(step);
  }
}

void PassRun::joinAll() {
  for (std::size_t i = 1; i < joined_.size(); ++i)
    if (queued_[i] > joined_[i])
      join(static_cast<int>(i), schedule().phases[static_cast<std::size_t>(queued_[i])].name);
}

void PassRun::finish() {
  joinAll();
  if (part_ == Part::tells) return bindAll();
  if (part_ == Part::before) return;
  if (half_->binding.copiesOutput())
    mover_.copy(callers_.output, at(schedule().output), elements(schedule().output), stream_);
  for (const int gradient : half_->gradients)
    work_.own()->addGradients(table(gradient).shape[0], at(gradient), stream_);
  lap(schedule().phases.size());
}

}  // namespace moeccl::schedules

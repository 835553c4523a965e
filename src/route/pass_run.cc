// Runs the phases of a pass in order: waits for streams, binds rows and grows buffers once counts
// are known, and stops at the experts. Other files run exchanges (exchanges.cc), moves (moves.cc)
// and token routing (routed_phases.cc), and tell what runs when around the caller's experts
// (around_experts.cc).
#include "src/route/pass_run.h"

#include <algorithm>
#include <new>

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

void PassRun::makeRoom() {
  for (PassMemory* memory : {&own_, &shared_}) memory->resize(buffers().size());
  for (std::size_t i = 0; i < buffers().size(); ++i) reserve(i, buffers()[i].bytes);
  if (keptRoom() > 0) reserveKept();
  std::size_t widest = 0;
  eachHalf([&](const Half& half) {
    times_.resize(std::max(times_.size(), half.schedule().phases.size() + 1));
    for (const Phase& phase : half.schedule().phases)
      widest = std::max({widest, phase.reads.size(), phase.writes.size()});
  });
  reads_.resize(widest);
  writes_.resize(widest);
  first_ = std::make_unique<bool[]>(widest);
  begins_.resize(static_cast<std::size_t>(sizes_.at(Dim::localExperts)) + 1);
  const auto runs = static_cast<std::size_t>(
      elementCount({groups_.esp.ranks, groups_.ep.ranks, sizes_.at(Dim::localExperts)}));
  hostCounts_.resize(runs);
  copies_.reserve(runs);
  runs_.reserve(runs);
  const auto most = static_cast<std::size_t>(std::max(groups_.ep.ranks, groups_.esp.ranks));
  for (auto* list : {&sendCounts_, &sendBegins_, &recvCounts_, &recvBegins_}) list->resize(most);
}

// Rows are the rank's own until they cross to their experts, and again once they are back.
void PassRun::makeLayouts(Half& half, const Half* forward) {
  const Schedule& schedule = half.schedule();
  half.written.resize(schedule.tables.size());
  half.layouts.resize(schedule.tables.size());
  std::vector<bool> own(schedule.tables.size());
  for (std::size_t i = 0; i < own.size() && forward != nullptr; ++i)
    for (std::size_t j = 0; j < forward->layouts.size(); ++j)
      if (forward->layouts[j] && forward->schedule().tables[j].name == schedule.tables[i].name)
        own[i] = forward->layouts[j]->isOwn();
  for (const Phase& phase : schedule.phases) {
    // Routing brings rows at once to where they are given.
    const bool makesRows = !phase.routed && (phase.kind == Kind::permute ||
                                             (phase.kind == Kind::combine && phase.backward));
    const bool crosses = phase.kind == Kind::exchange && phase.collective == Collective::allToAll;
    const auto read = static_cast<std::size_t>(phase.reads[0]);
    own[static_cast<std::size_t>(phase.writes[0])] = makesRows || own[read] != crosses;
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    if (hasRuns(schedule.tables[i]))
      half.layouts[i].emplace(schedule.tables[i].shape, own[i],
                              counts_[static_cast<std::size_t>(schedule.tables[i].chunk)]);
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

void PassRun::reserve(std::size_t buffer, std::int64_t bytes) {
  PassMemory& memory = memoryFor(buffer);
  std::size_t& room = memory.room[buffer];
  const auto needed = static_cast<std::size_t>(bytes);
  if (needed <= room) return;
  const bool dropless = buffers()[buffer].late && keptRoom() == 0;
  const auto textOf = [&](const std::string& why) {
    const std::int64_t embedding = sizes_.at(Dim::embedding);
    return "there is no memory for " + std::to_string(bytes / embedding / mover_.elementBytes()) +
           " rows of " + std::to_string(embedding) +
           " elements, which experts of this rank are given or their tokens need; the layer is "
           "dropless, so a hot expert is given all that choose it" +
           why;
  };
  try {
    mover_.grow(memory.memory[buffer], room, needed);
  } catch (const std::bad_alloc&) {
    if (!dropless) throw;
    throw Error(moecclSystemError, textOf(""));
  } catch (const Error& e) {  // a GPU's
    if (!dropless) throw;
    throw Error(e.result(), textOf(std::string(": ") + e.what()));
  }
}

// Where choices can be dropped there is room for all rows from the beginning.
void PassRun::reserveKept() {
  const std::int64_t row = sizes_.at(Dim::embedding) * mover_.elementBytes();
  for (std::size_t i = 0; i < buffers().size(); ++i) {
    const PassBuffer& buffer = buffers()[i];
    if (!buffer.late) continue;
    const std::int64_t one = std::min(keptRoom(), sizes_.at(Dim::tokens));
    reserve(i, (buffer.kept ? keptRoom() : one) * row);
  }
}

void* PassRun::at(int index) const {
  const Place& place = half_->binding.place(index);
  std::byte* base = nullptr;
  switch (place.storage) {
    case Storage::nothing:
    case Storage::view:
      return nullptr;
    case Storage::input:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.input));
      break;
    case Storage::output:
      base = static_cast<std::byte*>(callers_.output);
      break;
    case Storage::rows:
      base = static_cast<std::byte*>(callers_.rows);
      break;
    case Storage::results:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.results));
      break;
    case Storage::again:
      base = static_cast<std::byte*>(const_cast<void*>(callers_.again));
      break;
    case Storage::sums:
      if (work_.own() != nullptr) base = reinterpret_cast<std::byte*>(work_.own()->sums());
      break;
    case Storage::buffers: {
      const auto buffer = static_cast<std::size_t>(place.buffer);
      base = static_cast<std::byte*>(memoryFor(buffer).memory[buffer].get());
      if (expert_ >= 0 && buffers()[buffer].kept && has(table(index), Dim::keptRows))
        base += work_.keptBegins()[static_cast<std::size_t>(expert_)] * sizes_.at(Dim::embedding) *
                mover_.elementBytes();
      break;
    }
  }
  return base == nullptr ? nullptr : base + place.offset;
}

std::int64_t PassRun::rowsOf(int index) const {
  if (hasRuns(table(index))) return layout(index).rows();
  const std::span<const std::int64_t> begins = work_.keptBegins();
  const auto buffer = static_cast<std::size_t>(half_->binding.place(index).buffer);
  if (buffers()[buffer].kept || expert_ < 0) return begins.back();
  std::int64_t most = 0;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    most = std::max(most, begins[i + 1] - begins[i]);
  return most;
}

std::int64_t PassRun::elements(int index) const {
  return half_->binding.late(index) ? rowsOf(index) * sizes_.at(Dim::embedding)
                                    : sizes_.elements(table(index).shape);
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

// Before a phase that deals with rows: finds out how many there are, and makes room for those that
// the phase makes.
void PassRun::bind(const Phase& phase) {
  if (!bindRowsOf(phase)) return;
  for (const int made : phase.writes) reserveRows(made);
}

// Whether the phase deals with rows that are bound late.
bool PassRun::bindRowsOf(const Phase& phase) {
  const auto late = [&](int index) { return half_->binding.late(index); };
  if (std::ranges::none_of(phase.reads, late) && std::ranges::none_of(phase.writes, late))
    return false;
  const int counts = phase.reads.back();
  if (table(counts).element == Element::count64 && table(counts).role == Role::made)
    bindRows(counts);
  return true;
}

void PassRun::reserveRows(int index) {
  const Place& place = half_->binding.place(index);
  if (!half_->binding.late(index) || place.storage != Storage::buffers) return;
  const auto buffer = static_cast<std::size_t>(place.buffer);
  const std::int64_t bytes = elements(index) * mover_.elementBytes() * summands(index);
  if (static_cast<std::size_t>(bytes) <= memoryFor(buffer).room[buffer]) return;
  // Queued work may still use what lay there. The phase that is next counts as queued.
  for (std::size_t i = 1; i < queued_.size(); ++i) {
    if (joined_[i] >= queued_[i]) continue;
    join(static_cast<int>(i), schedule().phases[static_cast<std::size_t>(queued_[i])].name);
    joined_[i] = std::min(joined_[i], static_cast<int>(next_) - 1);
  }
  reserve(buffer, bytes);
}

// Where the host waits for streams, it does so once, for the counts of all chunks: rows of one that
// are queued would be waited for, too.
void PassRun::bindRows(int counts) {
  if (bound_[static_cast<std::size_t>(table(counts).chunk)] != 0) return;
  if (!mover_.onStreams()) return bindChunk(counts);
  std::vector<int> arrived{counts};
  for (std::size_t i = 0; i < next_; ++i) {
    const Phase& phase = schedule().phases[i];
    const int made = phase.writes.empty() ? counts : phase.writes[0];
    if (made == counts || table(made).name != table(counts).name) continue;
    if (phase.stream != 0 && joined_[static_cast<std::size_t>(phase.stream)] < static_cast<int>(i))
      join(phase.stream, phase.name);
    arrived.push_back(made);
  }
  for (const int each : arrived) bindChunk(each);
}

void PassRun::bindChunk(int counts) {
  const int chunk = table(counts).chunk;
  char& bound = bound_[static_cast<std::size_t>(chunk)];
  if (bound != 0) return;
  bound = 1;
  if (at(counts) != nullptr) readCounts(counts);
  eachHalf([&](Half& half) {
    for (std::size_t i = 0; i < half.layouts.size(); ++i)
      if (half.layouts[i] && half.schedule().tables[i].chunk == chunk) half.layouts[i]->bind();
  });
  // Nothing but this chunk's rows lies there: all of it grows while nothing is under way.
  if (counts_.size() == 1)
    for (int i = 0; i < static_cast<int>(schedule().tables.size()); ++i)
      if (table(i).role != Role::kept) reserveRows(i);
}

// The one wait of the chunk: what the gate has counted is there then, too.
void PassRun::readCounts(int index) {
  const auto chunk = static_cast<std::size_t>(table(index).chunk);
  const int ownCounts = ownCounts_[chunk];
  const std::span given(hostCounts_.data(), static_cast<std::size_t>(elements(index)));
  mover_.toHost(hostCounts_.data(), at(index), given.size_bytes(), stream_);
  counts_[chunk].setGiven(given, table(index).shape);
  const std::span own(hostCounts_.data(), static_cast<std::size_t>(elements(ownCounts)));
  work_.readCounts(table(ownCounts), own);
  counts_[chunk].setOwn(own, table(ownCounts).shape);
}

// A reduce-scatter of rows gets all summands before it adds them.
std::int64_t PassRun::summands(int index) const {
  for (const Phase& phase : schedule().phases)
    if (phase.kind == Kind::exchange && phase.collective == Collective::reduceScatter &&
        phase.writes[0] == index)
      return groups_.of(phase.group).ranks;
  return 1;
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

void PassRun::setExperts(const Phase& phase) {
  step_ = {};
  step_.backward = phase.backward;
  const int rows = phase.reads[0];
  void* const given = at(rows);
  void* const made = at(phase.writes[0]);
  if (phase.backward) {
    step_.given = at(phase.reads[1]);
    step_.gradients = made;
    if (made != given) mover_.copy(made, given, elements(rows), stream_);
  } else {
    step_.given = given;
    step_.made = made;
  }
  if (has(table(rows), Dim::keptRows) && expert_ >= 0) {
    const std::span<const std::int64_t> all = work_.keptBegins();
    const auto expert = static_cast<std::size_t>(expert_);
    step_.first = expert_;
    begins_[0] = 0;
    begins_[1] = all[expert + 1] - all[expert];
    step_.begins = {begins_.data(), 2};
    return;
  }
  step_.begins = beginsOf(rows);
  if (phase.copies && phase.backward && groups_.mp.ranks > 1) listCopies(rows);
}

// Where the rows of each of the rank's experts begin.
std::span<const std::int64_t> PassRun::beginsOf(int rows) {
  if (has(table(rows), Dim::keptRows)) return work_.keptBegins();
  const auto experts = static_cast<std::size_t>(sizes_.at(Dim::localExperts));
  begins_[0] = 0;
  for (std::size_t i = 0; i < experts; ++i)
    begins_[i + 1] =
        begins_[i] + (hasRuns(table(rows)) ? layout(rows).parts()[i]
                                           : elements(rows) / sizes_.at(Dim::embedding) /
                                                 static_cast<std::int64_t>(experts));
  return begins_;
}

// Lists the rows run by run. Ranks of an MP group bring the same rows; those of the first rank
// count.
void PassRun::listCopies(int rows) {
  copies_.clear();
  std::int64_t begin = 0;
  const auto place = [&](int ep, int esp, std::int64_t expert, std::int64_t count) {
    const bool counts = (groups_.shape.order == moecclOrderEspEp ? ep * groups_.esp.ranks + esp
                                                                 : esp * groups_.ep.ranks + ep) %
                            groups_.mp.ranks ==
                        0;
    if (!copies_.empty() && copies_.back().expert == expert && copies_.back().counts == counts)
      copies_.back().count += count;
    else
      copies_.push_back({expert, begin, count, counts});
    begin += count;
  };
  if (hasRuns(table(rows))) {
    layout(rows).each([&](int ep, int esp, std::int64_t expert) {
      place(ep, esp, expert, layout(rows).count(ep, esp, expert));
    });
  } else {
    const std::int64_t experts = sizes_.at(Dim::localExperts);
    const std::int64_t count =
        elements(rows) / sizes_.at(Dim::embedding) / experts / groups_.ep.ranks / groups_.esp.ranks;
    for (std::int64_t expert = 0; expert < experts; ++expert)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep)
        for (int esp = 0; esp < groups_.esp.ranks; ++esp) place(ep, esp, expert, count);
  }
  step_.copies = copies_;
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

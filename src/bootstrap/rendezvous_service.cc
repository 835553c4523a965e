// Who joins, what ranks are told, and when a rendezvous fails or ends. Its sockets are in
// rendezvous_connections.cc.
#include "src/bootstrap/rendezvous_service.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr int kEventsAtOnce = 64;
// How long a failed rendezvous waits for ranks to come and hear why.
constexpr std::int64_t kMinLingerMs = 1000, kMaxLingerMs = 60'000;
// Beyond this `ranks` is no number of ranks (tags have 16 bits for them).
constexpr int kMaxRanks = 1 << 16;

template <typename T>
std::shared_ptr<std::vector<std::byte>> bytesOf(const T& value) {
  const std::span bytes = std::as_bytes(std::span(&value, 1));
  return std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
}

std::shared_ptr<std::vector<std::byte>> message(MessageKind kind, moecclResult_t result,
                                                std::string_view text) {
  const MessageHeader header{kind, result, text.size()};
  auto bytes = std::make_shared<std::vector<std::byte>>(sizeof header + text.size());
  const auto payload = std::ranges::copy(std::as_bytes(std::span(&header, 1)), bytes->begin()).out;
  std::ranges::copy(std::as_bytes(std::span(text)), payload);
  return bytes;
}

}  // namespace

RendezvousService::RendezvousService(Socket listener, const Secret& secret,
                                     const RendezvousLimits& limits)
    : listener_(std::move(listener)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      secret_(secret),
      limits_(limits),
      deadline_(afterMs(limits.idleMs)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0)
    throw Error(moecclSystemError, stringf("the rendezvous cannot poll: %s", std::strerror(errno)));
}

void RendezvousService::run() {
  while (!finished()) {
    epoll_event events[kEventsAtOnce];
    const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, msUntil(nextDeadline()));
    if (count < 0 && errno != EINTR)
      throw Error(moecclSystemError, stringf("epoll_wait: %s", std::strerror(errno)));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kListener)
        acceptAll();
      else
        onEvent(events[i].data.u64, events[i].events);
      sweep();
    }
    expire();
    sweep();
  }
  if (refused_ > 0)
    log(LogLevel::info, {}, "the rendezvous refused %llu connections without the id",
        static_cast<unsigned long long>(refused_));
}

// ---------------------------------------------------------------------------------- the protocol

void RendezvousService::onGreeting(Id id, Connection& connection) {
  Greeting greeting;
  std::memcpy(&greeting, connection.in.data(), sizeof greeting);
  if (greeting.magic != kGreetingMagic) return drop(id);
  connection.theirs = greeting.nonce;
  fillRandom(connection.ours);
  strangers_.erase({false, id});
  strangers_.insert({true, id});
  connection.stage = Connection::Stage::joining;
  connection.have = 0;
  send(id, connection,
       bytesOf(Challenge{kChallengeMagic, connection.ours,
                         serviceProof(secret_, connection.theirs, connection.ours)}));
}

void RendezvousService::onJoin(Id id, Connection& connection) {
  Join join;
  std::memcpy(&join, connection.in.data(), sizeof join);
  if (!equalInConstantTime(join.proof,
                           joinProof(secret_, connection.theirs, connection.ours, join.arrival)))
    return drop(id);
  connection.stage = Connection::Stage::member;
  connection.have = 0;
  strangers_.erase({true, id});
  join.arrival.name[sizeof join.arrival.name - 1] = '\0';
  Accepted accepted{{MessageKind::accepted, moecclSuccess, sizeof accepted.name}, {}};
  std::strncpy(accepted.name, process_.c_str(), sizeof accepted.name - 1);
  send(id, connection, bytesOf(accepted));
  admit(id, connection, join.arrival);
}

void RendezvousService::admit(Id id, Connection& connection, const Arrival& arrival) {
  const auto [ranks, rank, timeoutMs, name] = arrival;
  if (phase_ == Phase::exchanging) {
    return send(id, connection,
                message(MessageKind::failure, moecclInvalidUsage,
                        stringf("rank %d (%s) came with an id that a communicator of %d ranks has "
                                "used already; an id serves one communicator",
                                rank, name, ranks_)));
  }
  if (phase_ == Phase::gathering && ranks_ == 0 && ranks >= 1 && ranks <= kMaxRanks) {
    ranks_ = missing_ = ranks;
    firstRank_ = rank;
    deadline_ = kNever;
    member_.resize(ranks);
    arrived_.resize(ranks);
    left_.resize(ranks);
    finished_.resize(ranks);
    arrivals_.resize(ranks);
  }
  const bool known = rank >= 0 && rank < ranks_;
  const bool first = known && !arrived_[rank];
  if (first) {
    arrived_[rank] = true;
    member_[rank] = id;
    arrivals_[rank] = arrival;
    connection.rank = rank;
    --missing_;
    ++present_;
  }
  if (phase_ == Phase::failed) return send(id, connection, failure_);

  std::string complaint;
  if (ranks != ranks_)
    complaint = stringf("ranks disagree on nRanks: rank %d (%s) came with %d, %s with %d", rank,
                        name, ranks, nameOf(firstRank_).c_str(), ranks_);
  else if (!known)
    complaint = stringf("rank %d (%s) is not one of %d ranks", rank, name, ranks_);
  else if (!first)
    complaint =
        stringf("two came as rank %d of %d: %s and %s", rank, ranks_, arrivals_[rank].name, name);
  if (!complaint.empty()) {
    fail(moecclInvalidUsage, complaint);
    if (!first) send(id, connection, failure_);
    return;
  }
  boundWait(rank);
  if (missing_ == 0) startExchanging();
}

void RendezvousService::onHeader(Connection& connection) {
  MessageHeader header;
  std::memcpy(&header, connection.in.data(), sizeof header);
  connection.have = 0;
  const int rank = connection.rank;
  if (phase_ == Phase::exchanging && rank >= 0 && header.kind == MessageKind::goodbye) {
    finished_[rank] = true;
    return;
  }
  if (phase_ != Phase::exchanging || rank < 0 || header.kind != MessageKind::part ||
      header.bytes > kMaxWholeBytes / static_cast<std::uint64_t>(ranks_) ||
      (round_.open && round_.began[rank]))
    return fail(moecclInternalError,
                stringf("%s broke the protocol of the rendezvous (message %u of %llu bytes)",
                        nameOf(rank).c_str(), static_cast<unsigned>(header.kind),
                        static_cast<unsigned long long>(header.bytes)));
  if (!round_.open) {
    round_ = {
        true,  header.bytes, rank, nullptr, std::vector<bool>(ranks_), std::vector<bool>(ranks_),
        ranks_};
    const std::uint64_t whole = header.bytes * static_cast<std::uint64_t>(ranks_);
    round_.all = bytesOf(MessageHeader{MessageKind::whole, moecclSuccess, whole});
    round_.all->resize(sizeof(MessageHeader) + whole);
    deadline_ = kNever;
  }
  if (header.bytes != round_.bytes)
    return fail(
        moecclInvalidUsage,
        stringf("ranks disagree while the communicator is set up: %s brings %llu bytes, %s "
                "%llu; do all run the same version of moeccl?",
                nameOf(rank).c_str(), static_cast<unsigned long long>(header.bytes),
                nameOf(round_.openedBy).c_str(), static_cast<unsigned long long>(round_.bytes)));
  round_.began[rank] = true;
  boundWait(rank);
  for (int other = 0; other < ranks_; ++other)
    if (left_[other]) onDeparture(other);
  if (phase_ == Phase::failed) return;
  if (header.bytes == 0)
    onPart(rank);
  else
    connection.inPayload = true;
}

void RendezvousService::onPart(int rank) {
  round_.done[rank] = true;
  if (--round_.missing > 0) return;
  const std::shared_ptr<const Bytes> all = std::move(round_.all);
  round_ = {};
  deadline_ = kNever;
  tellAll(all);
}

// A departure is harmless if that rank has said that it needs the others no more, and they need
// nothing of it.
void RendezvousService::onDeparture(int rank) {
  const std::string who = nameOf(rank);
  if (phase_ == Phase::gathering)
    fail(moecclRemoteError, who + " left while " + haveNot(arrived_, "arrived"));
  else if (phase_ == Phase::exchanging && (!finished_[rank] || round_.open))
    fail(moecclRemoteError, who + " left while the communicator was set up");
}

// -------------------------------------------------------------------------------------- the whole

void RendezvousService::startExchanging() {
  phase_ = Phase::exchanging;
  deadline_ = kNever;
  const auto own = std::ranges::find(arrivals_, process_,
                                     [](const Arrival& each) { return std::string(each.name); });
  const auto rank =
      static_cast<std::int32_t>(own == arrivals_.end() ? -1 : own - arrivals_.begin());
  tellAll(message(MessageKind::welcome, moecclSuccess,
                  {reinterpret_cast<const char*>(&rank), sizeof rank}));
}

// Ranks of this process last: what they hear may make them end it, and this service with it.
void RendezvousService::tellAll(const std::shared_ptr<const Bytes>& bytes) {
  for (const bool own : {false, true})
    for (int rank = 0; rank < ranks_; ++rank)
      if (member_[rank] != 0 && (process_ == arrivals_[rank].name) == own)
        send(member_[rank], connections_.at(member_[rank]), bytes);
}

void RendezvousService::fail(moecclResult_t result, const std::string& text) {
  if (phase_ == Phase::failed) return;
  log(LogLevel::info, {}, "the rendezvous failed: %s", text.c_str());
  // Ranks that have not come may be on their way until the deadline, had all gone well.
  const std::int64_t lingerMs =
      deadline_ == kNever
          ? kMaxLingerMs
          : std::clamp<std::int64_t>(msUntil(deadline_), kMinLingerMs, kMaxLingerMs);
  phase_ = Phase::failed;
  deadline_ = afterMs(lingerMs);
  round_ = {};
  failure_ =
      message(MessageKind::failure, result, std::string_view(text).substr(0, kMaxFailureBytes));
  tellAll(failure_);
}

// A rank waits for the others, for as long as its own timeout.
void RendezvousService::boundWait(int rank) {
  const std::int64_t timeoutMs = arrivals_[rank].timeoutMs;
  const TimePoint mine = afterMs(timeoutMs);
  if (mine >= deadline_) return;
  deadline_ = mine;
  deadlineMs_ = timeoutMs;
}

void RendezvousService::expire() {
  for (Id id = nextToExpire(); id != 0 && isPast(connections_.at(id).deadline); id = nextToExpire())
    drop(id);
  if (isPast(acceptAgain_)) resumeAccepting();
  if (phase_ == Phase::failed || ranks_ == 0 || !isPast(deadline_)) return;
  const long long waited = deadlineMs_;
  if (phase_ == Phase::gathering)
    fail(moecclTimeout, haveNot(arrived_, "arrived") + stringf(" within %lld ms", waited));
  else
    fail(moecclTimeout,
         haveNot(round_.done, "taken part in the set-up") + stringf(" within %lld ms", waited));
}

// The oldest stranger, or 0.
RendezvousService::Id RendezvousService::nextToExpire() const {
  if (strangers_.empty()) return 0;
  const auto greeted = strangers_.lower_bound({true, 0});
  const Id oldest = strangers_.begin()->second;
  return greeted == strangers_.end() ? oldest : std::min(oldest, greeted->second);
}

TimePoint RendezvousService::nextDeadline() const {
  const TimePoint next = std::min(deadline_, acceptAgain_);
  const Id stranger = nextToExpire();
  return stranger == 0 ? next : std::min(next, connections_.at(stranger).deadline);
}

bool RendezvousService::finished() const {
  if (phase_ == Phase::gathering) return ranks_ == 0 && isPast(deadline_);
  if (phase_ == Phase::failed && isPast(deadline_)) return true;
  if (phase_ == Phase::exchanging) return present_ == 0;
  return missing_ == 0 && connections_.size() == strangers_.size();
}

std::string RendezvousService::nameOf(int rank) const {
  if (rank < 0 || rank >= ranks_ || !arrived_[rank]) return stringf("rank %d", rank);
  return stringf("rank %d (%s)", rank, arrivals_[rank].name);
}

// "rank 2 of 8 has not arrived", "ranks 2, 5 of 8 have not arrived"
std::string RendezvousService::haveNot(const std::vector<bool>& done, const char* what) const {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank)
    if (!done[rank]) missing.push_back(rank);
  return rankList(missing) +
         stringf(" of %d %s not %s", ranks_, missing.size() == 1 ? "has" : "have", what);
}

}  // namespace moeccl

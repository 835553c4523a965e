// Tries all addresses of an id at the same time: each attempt is a state machine on a socket that
// does not block.
#include "src/bootstrap/rendezvous_dial.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/bootstrap/clock.h"

namespace moeccl {
namespace {

// Addresses are begun one after another, a working one has answered before the next begins.
constexpr std::int64_t kStaggerMs = 50;
constexpr std::int64_t kFirstPauseMs = 50, kLongestPauseMs = 250;
constexpr std::int64_t kConnectMs = 20'000;  // SYNs that a full backlog dropped come again by then
constexpr std::int64_t kAnswerMs = 15'000;   // a little longer than the service's own patience
// So long may every address fail before it is certain that nobody is there.
constexpr std::int64_t kHopeMs = 1000;

// One address, tried again and again.
class Attempt {
 public:
  Attempt(const IpAddress& address, const RendezvousId& id, TimePoint begin)
      : address_(address), id_(id), next_(begin) {}

  enum class State {
    waiting,     // for the time of the next try
    connecting,  // no connection yet
    greeted,     // no proof yet
    proved,      // it is the service: join()
    joined,      // not accepted yet
    accepted,    // take()
  };

  State state() const { return state_; }
  bool tried() const { return tried_; }
  // When a service may have been there last: what is not a service does not count.
  std::optional<TimePoint> lastHope() const { return lastHope_; }
  TimePoint nextStep() const { return next_; }
  std::string report() const {
    const std::string now = state_ == State::waiting      ? "not tried yet"
                            : state_ == State::connecting ? kNoConnection
                                                          : kNoAnswer;
    return endpointText(address_, id_.port) + " (" + (outcome_.empty() ? now : outcome_) + ")";
  }

  pollfd wanted() const {
    return {socket_.get(), static_cast<short>(state_ == State::connecting ? POLLOUT : POLLIN), 0};
  }
  void onReady() {
    if (state_ == State::connecting) return onConnected();
    if (state_ == State::greeted) return onChallenge();
    if (state_ == State::joined) return onAccepted();
  }
  void onTime() {
    if (!isPast(next_)) return;
    if (state_ == State::waiting) return begin();
    giveUp(state_ == State::connecting ? kNoConnection : kNoAnswer, state_ != State::connecting);
  }
  void join(const Arrival& arrival) {
    const Join join{arrival, joinProof(id_.secret, ours_, theirs_, arrival)};
    if (!sendAll(join)) return;
    state_ = State::joined;
    next_ = kNever;  // it is the service, however slow
  }
  // Another attempt has the floor.
  void stop() {
    if (state_ != State::waiting) giveUp(kNoAnswer, true);
  }
  Service take() { return {std::move(socket_), process_}; }

 private:
  static constexpr const char* kNoConnection = "no connection";
  static constexpr const char* kNoAnswer = "connected, but no answer";
  static constexpr const char* kClosed = "the connection was closed";

  void begin() {
    tried_ = true;
    if (const int error = startConnect(address_, id_.port, &socket_)) return giveUp(error);
    state_ = State::connecting;
    next_ = afterMs(kConnectMs);
  }

  void onConnected() {
    if (const int error = connectResult(socket_)) return giveUp(error);
    tuneConnection(socket_);
    breakWhenSilent(socket_, kSilenceMs);
    fillRandom(ours_);
    if (!sendAll(Greeting{kGreetingMagic, ours_})) return;
    state_ = State::greeted;
    next_ = afterMs(kAnswerMs);
  }

  void onChallenge() {
    Challenge challenge;
    if (!receive(sizeof challenge)) return;
    std::memcpy(&challenge, answer_.data(), sizeof challenge);
    if (std::memcmp(&challenge.magic, &kChallengeMagic, std::min(have_, sizeof challenge.magic)) !=
        0)
      return giveUp("something else listens there", false);
    if (have_ < sizeof challenge) return;
    theirs_ = challenge.nonce;
    if (!equalInConstantTime(challenge.proof, serviceProof(id_.secret, ours_, theirs_)))
      return giveUp("another rendezvous listens there", false);
    state_ = State::proved;
    have_ = 0;
  }

  void onAccepted() {
    Accepted accepted;
    if (!receive(sizeof accepted) || have_ < sizeof accepted) return;
    std::memcpy(&accepted, answer_.data(), sizeof accepted);
    if (accepted.header.kind != MessageKind::accepted ||
        accepted.header.bytes != sizeof accepted.name)
      return giveUp("it breaks its protocol", false);
    process_.assign(accepted.name, strnlen(accepted.name, sizeof accepted.name));
    state_ = State::accepted;
  }

  // A small message into an empty socket buffer: all or nothing.
  template <typename Message>
  bool sendAll(const Message& message) {
    if (send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL) ==
        static_cast<ssize_t>(sizeof message))
      return true;
    giveUp(kClosed, true);
    return false;
  }

  // Reads more of a message of so many bytes; false when nothing came.
  bool receive(std::size_t size) {
    const ssize_t got = recv(socket_.get(), answer_.data() + have_, size - have_, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
      giveUp(kClosed, true);
      return false;
    }
    have_ += static_cast<std::size_t>(got);
    return true;
  }

  void giveUp(int error) { giveUp(std::strerror(error), false); }
  void giveUp(const std::string& outcome, bool hope) {
    outcome_ = outcome;
    if (hope) lastHope_ = Clock::now();
    socket_ = Socket();
    have_ = 0;
    state_ = State::waiting;
    next_ = afterMs(pauseMs_);
    pauseMs_ = std::min(2 * pauseMs_, kLongestPauseMs);
  }

  const IpAddress address_;
  const RendezvousId& id_;
  State state_ = State::waiting;
  TimePoint next_;  // to begin (again), or to give up
  std::int64_t pauseMs_ = kFirstPauseMs;
  bool tried_ = false;
  std::string outcome_;
  std::optional<TimePoint> lastHope_;
  Socket socket_;
  Nonce ours_, theirs_;
  std::array<std::byte, std::max(sizeof(Challenge), sizeof(Accepted))> answer_{};
  std::size_t have_ = 0;
  std::string process_;
};

std::string reports(const std::vector<Attempt>& attempts) {
  std::string text;
  for (const Attempt& attempt : attempts) text += (text.empty() ? "" : ", ") + attempt.report();
  return text;
}

bool hopeless(const std::vector<Attempt>& attempts, TimePoint start) {
  TimePoint last = start;
  for (const Attempt& attempt : attempts) {
    if (!attempt.tried() || attempt.state() != Attempt::State::waiting) return false;
    last = std::max(last, attempt.lastHope().value_or(start));
  }
  return Clock::now() - last >= std::chrono::milliseconds(kHopeMs);
}

// The attempt that speaks for the rank, once one has found the service: the others keep quiet, for
// a rank must not arrive twice.
Attempt* speaker(std::vector<Attempt>& attempts) {
  for (Attempt& attempt : attempts)
    if (attempt.state() >= Attempt::State::proved) return &attempt;
  return nullptr;
}

}  // namespace

Service dialService(const RendezvousId& id, const Arrival& arrival, bool early) {
  const TimePoint start = Clock::now(), deadline = afterMs(arrival.timeoutMs);
  std::vector<Attempt> attempts;
  for (const IpAddress& address : id.addresses)
    attempts.emplace_back(
        address, id,
        start + std::chrono::milliseconds(kStaggerMs * static_cast<int>(attempts.size())));

  for (;;) {
    std::vector<pollfd> polled;
    std::vector<Attempt*> of;
    TimePoint next = deadline;
    Attempt* const only = speaker(attempts);
    for (Attempt& attempt : attempts) {
      if (only != nullptr && &attempt != only) continue;
      attempt.onTime();
      next = std::min(next, attempt.nextStep());
      if (attempt.state() == Attempt::State::waiting) continue;
      polled.push_back(attempt.wanted());
      of.push_back(&attempt);
    }
    if (!early && hopeless(attempts, start))
      throw Error(moecclSystemError,
                  "nobody answers for this id: " + reports(attempts) +
                      "; the process that made it has ended, or the id was used before");
    if (isPast(deadline))
      throw Error(moecclTimeout, stringf("no answer for this id within %lld ms: ",
                                         static_cast<long long>(arrival.timeoutMs)) +
                                     reports(attempts));
    if (poll(polled.data(), polled.size(), msUntil(next)) <= 0) continue;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      of[i]->onReady();
      if (of[i]->state() == Attempt::State::accepted) return of[i]->take();
      if (of[i]->state() != Attempt::State::proved) continue;
      for (Attempt& attempt : attempts)
        if (&attempt != of[i]) attempt.stop();
      of[i]->join(arrival);
      break;
    }
  }
}

}  // namespace moeccl

#include "src/comm/rendezvous_dial.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "src/error.h"
#include "src/text.h"

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

  bool waiting() const { return state_ == State::waiting; }
  bool tried() const { return tried_; }
  // When a service may have been there last: what is not a service does not count.
  std::optional<TimePoint> lastHope() const { return lastHope_; }
  TimePoint nextStep() const { return next_; }
  std::string report() const {
    return endpointText(address_, id_.port) + " (" + (tried_ ? outcome_ : "not tried yet") + ")";
  }

  pollfd wanted() const {
    return {socket_.get(), static_cast<short>(state_ == State::connecting ? POLLOUT : POLLIN), 0};
  }
  // Both: true when the service has proved itself; take() it.
  bool onReady() { return state_ == State::connecting ? onConnected() : onAnswer(); }
  void onTime() {
    if (!isPast(next_)) return;
    if (state_ == State::waiting) return begin();
    giveUp(state_ == State::connecting ? "no connection" : "connected, but no answer",
           state_ == State::greeted);
  }
  DialledService take() { return {std::move(socket_), ours_, theirs_}; }

 private:
  enum class State { waiting, connecting, greeted };

  void begin() {
    tried_ = true;
    outcome_ = "no connection";
    if (const int error = startConnect(address_, id_.port, &socket_)) return giveUp(error);
    state_ = State::connecting;
    next_ = afterMs(kConnectMs);
  }

  bool onConnected() {
    if (const int error = connectResult(socket_)) return giveUp(error), false;
    tuneConnection(socket_);
    Greeting greeting{kGreetingMagic, {}};
    fillRandom(greeting.nonce);
    ours_ = greeting.nonce;
    const ssize_t sent = send(socket_.get(), &greeting, sizeof greeting, MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(sizeof greeting)) {
      giveUp("the connection was closed", true);
      return false;
    }
    state_ = State::greeted;
    outcome_ = "connected, but no answer";
    have_ = 0;
    next_ = afterMs(kAnswerMs);
    return false;
  }

  bool onAnswer() {
    const ssize_t got = recv(socket_.get(), answer_.data() + have_, answer_.size() - have_, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return giveUp("the connection was closed", true), false;
    have_ += static_cast<std::size_t>(got);
    Challenge challenge;
    std::memcpy(&challenge, answer_.data(), sizeof challenge);
    if (std::memcmp(&challenge.magic, &kChallengeMagic, std::min(have_, sizeof challenge.magic)) !=
        0)
      return giveUp("something else listens there", false), false;
    if (have_ < sizeof challenge) return false;
    theirs_ = challenge.nonce;
    if (!equalInConstantTime(challenge.proof, serviceProof(id_.secret, ours_, theirs_)))
      return giveUp("another rendezvous listens there", false), false;
    return true;
  }

  void giveUp(int error) { giveUp(std::strerror(error), false); }
  void giveUp(const std::string& outcome, bool hope) {
    outcome_ = outcome;
    if (hope) lastHope_ = Clock::now();
    socket_ = Socket();
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
  std::array<std::byte, sizeof(Challenge)> answer_{};
  std::size_t have_ = 0;
};

std::string reports(const std::vector<Attempt>& attempts) {
  std::string text;
  for (const Attempt& attempt : attempts) text += (text.empty() ? "" : ", ") + attempt.report();
  return text;
}

bool hopeless(const std::vector<Attempt>& attempts, TimePoint start) {
  TimePoint last = start;
  for (const Attempt& attempt : attempts) {
    if (!attempt.tried() || !attempt.waiting()) return false;
    last = std::max(last, attempt.lastHope().value_or(start));
  }
  return Clock::now() - last >= std::chrono::milliseconds(kHopeMs);
}

}  // namespace

DialledService dialService(const RendezvousId& id, TimePoint deadline, std::int64_t timeoutMs) {
  const TimePoint start = Clock::now();
  std::vector<Attempt> attempts;
  for (const IpAddress& address : id.addresses)
    attempts.emplace_back(
        address, id,
        start + std::chrono::milliseconds(kStaggerMs * static_cast<int>(attempts.size())));

  for (;;) {
    std::vector<pollfd> polled;
    std::vector<Attempt*> of;
    TimePoint next = deadline;
    for (Attempt& attempt : attempts) {
      attempt.onTime();
      next = std::min(next, attempt.nextStep());
      if (attempt.waiting()) continue;
      polled.push_back(attempt.wanted());
      of.push_back(&attempt);
    }
    if (hopeless(attempts, start))
      throw Error(moecclSystemError,
                  "nobody answers for this id: " + reports(attempts) +
                      "; the process that made it has ended, or the id was used before");
    if (isPast(deadline))
      throw Error(moecclTimeout, stringf("no answer for this id within %lld ms: ",
                                         static_cast<long long>(timeoutMs)) +
                                     reports(attempts));
    if (poll(polled.data(), polled.size(), msUntil(next)) <= 0) continue;
    for (std::size_t i = 0; i < polled.size(); ++i)
      if (polled[i].revents != 0 && of[i]->onReady()) return of[i]->take();
  }
}

}  // namespace moeccl

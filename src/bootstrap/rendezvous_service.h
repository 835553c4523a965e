// The service of one rendezvous: one thread, one epoll set, nothing that blocks. See
// rendezvous_wire.h for what is said and rendezvous.h for who may say it.
//
//   gathering ──all ranks here──▶ exchanging ──all ranks gone──▶ end
//       │                             │
//       └──────────any error──────────┴──▶ failed ──every rank told, or lingered enough──▶ end
//
// In `failed` the service goes on listening, so that ranks that come late learn the reason too.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/rendezvous.h"
#include "src/bootstrap/rendezvous_wire.h"
#include "src/bootstrap/socket.h"

namespace moeccl {

class RendezvousService {
 public:
  // Throws Error (moecclSystemError).
  RendezvousService(Socket listener, const Secret& secret, const RendezvousLimits& limits);

  // Returns when the rendezvous is over.
  void run();

 private:
  using Id = std::uint64_t;  // of a connection; ascends, never used again
  static constexpr Id kListener = 0;
  using Bytes = std::vector<std::byte>;

  struct Outgoing {
    std::shared_ptr<const Bytes> bytes;  // one copy for all ranks
    std::size_t sent = 0;
  };

  struct Connection {
    enum class Stage { greeting, joining, member };

    Socket socket;
    Stage stage = Stage::greeting;
    TimePoint deadline = kNever;             // to become a member
    std::array<std::byte, sizeof(Join)> in;  // the fixed-size message that is arriving
    std::size_t have = 0;                    // of `in`, or of the part's payload
    bool inPayload = false;
    Nonce theirs, ours;
    int rank = -1;
    std::deque<Outgoing> out;
    bool wantsWrite = false;
    bool over = false;  // to be closed
  };

  struct Round {
    bool open = false;
    std::uint64_t bytes = 0;     // per rank
    int openedBy = -1;           // rank
    std::shared_ptr<Bytes> all;  // a `whole` under construction, header included
    std::vector<bool> began, done;
    int missing = 0;
  };

  enum class Phase { gathering, exchanging, failed };

  // Connections.
  void acceptAll();
  void pauseAccepting();
  void resumeAccepting();
  void onEvent(Id id, std::uint32_t events);
  bool receive(Id id, Connection& connection);
  bool receiveFixed(Connection& connection, std::size_t size);
  void send(Id id, Connection& connection, std::shared_ptr<const Bytes> bytes);
  void flush(Id id, Connection& connection);
  void watch(Id id, Connection& connection);
  void dropOldestStranger();
  void drop(Id id);
  void sweep();

  // The protocol.
  void onGreeting(Id id, Connection& connection);
  void onJoin(Id id, Connection& connection);
  void admit(Id id, Connection& connection, const Arrival& arrival);
  void onHeader(Connection& connection);
  void onPart(int rank);
  void onDeparture(int rank);

  // The whole.
  void startExchanging();
  void tellAll(const std::shared_ptr<const Bytes>& bytes);
  void fail(moecclResult_t result, const std::string& text);
  void boundWait(int rank);
  void expire();
  Id nextToExpire() const;
  TimePoint nextDeadline() const;
  bool finished() const;
  std::string nameOf(int rank) const;
  std::string haveNot(const std::vector<bool>& done, const char* what) const;

  const std::string process_ = processName();
  Socket listener_;
  FileDescriptor epoll_;
  Secret secret_;
  RendezvousLimits limits_;

  std::unordered_map<Id, Connection> connections_;
  Id nextId_ = kListener + 1;
  // Not yet members: those that have not greeted first, each half from the oldest on.
  std::set<std::pair<bool, Id>> strangers_;
  std::vector<Id> sweeping_;        // `over`
  TimePoint acceptAgain_ = kNever;  // when accepting pauses for want of descriptors
  std::uint64_t refused_ = 0;

  Phase phase_ = Phase::gathering;
  int ranks_ = 0;                     // 0 until the first rank has come
  int firstRank_ = 0;                 // that one
  std::vector<Id> member_;            // by rank; 0: not here
  std::vector<bool> arrived_, left_;  // by rank
  std::vector<bool> finished_;        // by rank: it has said goodbye
  std::vector<Arrival> arrivals_;     // by rank
  int missing_ = 0;                   // ranks that have not arrived
  int present_ = 0;                   // ranks that have, and have not left
  Round round_;
  TimePoint deadline_;           // of the phase, or of the round
  std::int64_t deadlineMs_ = 0;  // what it was, for people
  std::shared_ptr<const Bytes> failure_;
};

}  // namespace moeccl

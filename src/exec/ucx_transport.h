// Ranks as processes over UCX. Private to ucx_*.cc and their tests.
//
//   ucx_open.cc       the beginning
//   ucx_transport.cc  transfers
//   ucx_sleep.cc      waiting for news
//   ucx_peers.cc      endpoints, and what happens when a peer is gone
//   ucx_control.cc    goodbyes and the like, as active messages beside the data
//   ucx_credit.cc     how much peers may send unasked
//   ucx_loans.cc      the memory of callers
//   ucx_close.cc      the end
//   ucx_settings.cc   how UCX is tuned
//   ucx_sockets.cc    what strangers may not send to it
//   ucx_room.cc       what it needs of the node and of this process
//
// Data are tagged messages; the tag holds the source, so the whole tag is matched and every receive
// is posted as soon as the caller asks for it. UCX ties receives to no peer. So each pending
// transfer is also in its peer's list, and when the peer is gone its receives are cancelled here.
//
// What is done for UCX 1.13 alone, and what shows it (tests/exec):
//   two settings (ucx_settings.cc)           UcxSettings.RanksOfANodeShareMemoryAndWatchEachOther
//   sends over TCP are done after a flush    SendsThatAreDoneNeedNothingMoreOfTheirRank
//   receives are completed by callback only  TransportContract's of lengths
//   small messages are never contiguous      UcxSettings.RanksOfANodeShareMemoryAndWatchEachOther
//   cancelled transfers, endpoints that are  TransportContract's of cancelled transfers and dead
//   closed for them, and only for them       peers; tests/faults
//   processes are watched                    APeerThatDiedBeforeBeingKnown
//   processes of this machine have           tests/faults, --kills: UCX crashes where it comes to
//   endpoints from the start                 connect to one that has ended
//   goodbyes carry ballast                   ManyRanksCloseTogether
//   what cannot be settled is leaked         tests/faults, --kills
//
// How the end of a peer is noticed, for whichever peer this rank has ever sent to or awaited
// something from (each of which gets an endpoint, receive-only ones too):
//   - a process of this machine: by the kernel, at once (ProcessWatch);
//   - elsewhere: by its connection breaking, or by UCX's keepalive (which, in 1.13, overlooks a
//     shared-memory peer that ended before its first answer);
//   - a transport closed abruptly in a process that lives on: by its goodbye.
// A host that vanishes without a word is for others to find, and to tell by lose(). Over TCP, which
// only those get who ask for it, UCX (1.13) may abort() when a peer ends.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <vector>

#include "src/exec/pollable.h"
#include "src/exec/transfer_list.h"
#include "src/exec/ucx.h"
#include "src/exec/ucx_handles.h"
#include "src/exec/ucx_loans.h"
#include "src/exec/vain_rings.h"
#include "src/watch/process_watch.h"

namespace moeccl {

class UcxTransport final : public PollableTransport {
  using Clock = std::chrono::steady_clock;

 public:
  UcxTransport(int rank, int ranks, const UcxOptions& options = {});
  ~UcxTransport() override;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string name() const override;
  Address address() override;
  void connect(std::span<const Address> addresses) override;
  void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) override;
  void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) override;
  void cancel(Transfer* transfer) override;
  bool unexpected(Tag value, Tag mask, Tag* found) override;
  bool progress() override;
  void wait(int milliseconds) override;
  void wake() override;
  void lose(int peer, const std::string& why) override;
  void leave(int peer, const std::string& why) override;
  bool close(bool abrupt, int milliseconds) override;
  std::string lastError() const override { return lastError_; }

  bool prepareToSleep(int* milliseconds) override;
  std::span<const int> sleepOn() const override { return sleepOn_; }
  void awake(std::span<const pollfd> polled) override;
  bool isBusy() const override { return inFlight_ > 0; }
  bool drained() override;
  Clock::time_point lastErrorTime() const override { return lastErrorTime_; }

  // UCX's description of the connection to a peer, for people and tests.
  std::string describeConnection(int peer);

 private:
  // How long the peer may take to refuse a cancelled send, for which it must get to its progress().
  static constexpr std::chrono::milliseconds kRefusing{500};
  // How long a cancelled receive of which a part has arrived may take to end by itself before the
  // connection is closed for it.
  static constexpr std::chrono::milliseconds kTakingBack{2000};
  // UCX gives back the sends of a closed endpoint within a few rounds of progress. It does not give
  // back a receive of which only a part has arrived; after this long the caller gets it back from
  // here.
  static constexpr std::chrono::milliseconds kGivingBack{100};

  static constexpr int kGoodbyeRounds = kSourceBits;  // each doubles the ranks heard of

  // A message that its sender has announced.
  struct Offer {
    Tag tag;
    std::uint64_t id;
  };
  struct Peer {
    UcxTransport* transport = nullptr;
    int rank = -1;
    Address address;  // UCX's
    ProcessIdentity process;
    bool elsewhere = false;  // on another machine
    std::string name;        // "process 71 on host"
    UcxEndpoint endpoint;    // may be there when the peer is gone, too
    bool reads = false;      // a large message is read from its sender's memory
    bool reached = false;    // it has been turned to
    bool gone = false;
    std::string whyGone;
    TransferList pending;            // in flight
    TransferList cancelled;          // in flight, cancelled or lost, not yet given back by UCX
    int unanswered = 0;              // cancelled sends that UCX still has
    Clock::time_point sendsUntil{};  // when the cancelled sends have had time enough
    Clock::time_point patience{};    // and when all have
    std::int64_t credit = 0;         // what it takes unasked
    std::int64_t owed = 0;           // credit of the peer's, of which it does not know
    TransferList announced;          // sends beyond the credit, not granted
    std::deque<Offer> offers;        // of the peer, not granted
  };
  struct Loss {
    int rank;
    std::string why;
    bool broken = false;  // the connection, or the process is no more
  };
  // A control message, to one peer or several.
  struct Control {
    enum class Kind : std::uint32_t {
      goodbye,  // of a round of the closing barrier
      gone,     // the sender gives up the connection
      refuse,   // the sender has cancelled a message
      announce,
      withdraw,
      grant,
      unwanted,
      credit,  // ucx_credit.cc
    };
    struct Message {
      Kind kind;
      std::int32_t source;
      std::int32_t round = 0;
      Tag tag = 0;
      std::uint64_t number = 0;  // of an announced message, or bytes of credit
      // UCX sends short messages before it has heard from the peer, others afterwards. A goodbye
      // that leaves so soon lets its sender end, to whom the peer would then connect.
      std::array<std::byte, 400> ballast{};
    } message;
    UcxTransport* transport = nullptr;
    int unsent = 0;
    std::list<Control>::iterator self;
  };
  // Our part of each UCX request. All null until the call that makes the request has returned; no
  // transfer: it has been given up.
  struct RequestSpace {
    UcxTransport* transport;
    Transfer* transfer;
    Peer* unanswered;      // that a cancelled send is left to
    UcxLoans::Loan* loan;  // of a send
  };

  // ucx_open.cc
  static void initRequest(void* request);

  // ucx_transport.cc
  static void sendDone(void* request, ucs_status_t status, void* transfer);
  static void recvDone(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                       void* transfer);
  static void requestDone(void* request, ucs_status_t status, std::size_t bytes, void* transfer);
  void begin(Peer& to, Transfer* send);
  void post(Transfer* receive);
  // Takes over the request that a call to UCX has returned for a transfer; false: that is over.
  bool started(Transfer* transfer, ucs_status_ptr_t request, UcxLoans::Loan* loan = nullptr);
  void finish(Transfer* transfer, ucs_status_t status, std::size_t bytes);
  TransferStatus judge(Transfer* transfer, ucs_status_t status);
  // Completes sends that UCX calls done once they have left this process.
  bool flush();
  void complete(Transfer* send);

  // ucx_peers.cc
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  // The endpoint, made at its first use; null when the peer is gone.
  ucp_ep_h reach(Peer& peer);
  void makeEndpoint(Peer& peer);
  static std::string describeConnection(const Peer& peer);
  static void endpointFailed(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void lookAfterProcesses();
  bool settle();
  void lose(Peer& peer, const std::string& why);
  void cancelInFlight(Transfer* transfer);
  bool giveUpSends(Peer& peer);
  void giveUpCancelled(Peer& peer);
  void refuse(Tag tag);
  bool isRefused(Transfer* receive);

  // ucx_control.cc
  void setControlHandler();
  static ucs_status_t controlArrived(void* transport, const void* header, std::size_t headerBytes,
                                     void* data, std::size_t bytes,
                                     const ucp_am_recv_param_t* param);
  static void controlSent(void* request, ucs_status_t status, void* control);
  Control& newControl(Control::Kind kind);
  void post(Control& control, Peer& to);
  static void release(Control& control);

  // ucx_credit.cc
  static std::int64_t chargeOf(std::size_t bytes);
  // Whether a send may begin, which is charged then; else it must be announced.
  bool mayBegin(Peer& to, const Transfer& send);
  void announce(Peer& to, Transfer* send);
  void withdraw(Transfer* send);
  void say(Peer& to, Control::Kind kind, Tag tag, std::uint64_t number);
  void owe(Peer& to, std::size_t bytes);
  void settleCredit();
  void announced(Peer& from, Tag tag, std::uint64_t id);
  void grantTo(Peer& from, Transfer* receive);
  void withdrawn(Peer& from, Tag tag, std::uint64_t id);
  void answered(Peer& from, std::uint64_t id, bool granted);
  // Refuses what is announced now, and from now on.
  void refuseOffers();

  // ucx_close.cc
  template <typename Condition>
  bool progressUntil(Condition condition, Clock::time_point deadline);
  template <typename Condition>
  bool othersUntil(Condition condition, Clock::time_point deadline);
  bool sayGoodbye(Clock::time_point deadline);
  // Chores are requests of UCX that close() waits for.
  template <typename Start>
  void startChore(Start start);
  static void choreDone(void* request, void* transport);
  bool awaitChores(Clock::time_point deadline);
  void flushEndpoints();
  void flushWorker();
  void drop(ucp_tag_message_h message);
  bool dropUnexpected();
  Peer* senderOf(Tag tag);

  const int rank_, ranks_;
  const std::vector<int> sources_;  // by rank: as tags name it
  UcxContext context_;
  FileDescriptor woken_;   // an eventfd
  int workerEvents_ = -1;  // the worker's
  std::array<int, 3> sleepOn_{};
  // Strangers may ring too (ucx_sockets.h).
  bool rung_ = false, moved_ = false;  // the worker's event came; there was something to progress
  VainRings rings_;
  ProcessWatch processes_;
  UcxLoans loans_;
  UcxWorker worker_;
  std::vector<Peer> peers_;  // by rank; empty until connected
  std::list<Control> controls_;
  // For the next progress() to settle:
  std::vector<Loss> losses_;
  std::vector<Tag> refused_;
  std::vector<int> cancelling_;            // ranks with cancelled transfers
  std::vector<int> owing_;                 // ranks whose credit is to be given back
  std::vector<Control::Message> arrived_;  // about credit

  bool tcp_ = false;      // UCX may use it
  TransferList leaving_;  // sends that UCX calls done
  TransferList flushed_;  // those that a flush is for
  bool flushing_ = false;

  std::bitset<kGoodbyeRounds> goodbyes_;  // rounds of the closing barrier that have come in
  std::size_t sendsInFlight_ = 0, inFlight_ = 0, chores_ = 0;
  unsigned rounds_ = 0;     // of progress
  std::int64_t share_ = 0;  // of the memory, for each peer
  std::uint32_t nextId_ = 1;
  bool closing_ = false;  // what comes unasked will never be asked for
  bool closed_ = false;
  Clock::time_point othersUntil_ = Clock::time_point::max();  // while closing, once one is gone
  std::string lastError_;
  Clock::time_point lastErrorTime_{};
};

}  // namespace moeccl

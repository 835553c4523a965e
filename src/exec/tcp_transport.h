// Ranks as processes over TCP sockets. Private to tcp_*.cc and their tests.
//
//   tcp_transport.cc     life, data path, waiting
//   tcp_connect.cc       addresses, and which connection is whose
//   tcp_close.cc         the end
//   tcp_connection.cc    one socket, and frames on it
//   tcp_peer.cc          what is asked of a peer, and what goes to it, by its credit
//   tcp_peer_receive.cc  what comes from it
//   tcp_frames.h         what is said
//   tcp_memory.h         memory for messages that nobody has asked for yet
//
// A pair connects when either turns to the other first, a receiver too: else it would not notice
// the other's end. Both may do so at once; then the lower rank's connection becomes theirs.
//
// A peer is gone when a connection that was the pair's ends, or when its port is closed. A host
// that vanishes without a word is for others to find (src/watch); until then the kernel's own
// limits hold (minutes).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/bootstrap/acceptor.h"
#include "src/exec/tcp.h"
#include "src/exec/tcp_connection.h"
#include "src/exec/vain_rings.h"

namespace moeccl {

class TcpTransport final : public PollableTransport {
 public:
  TcpTransport(int rank, int ranks, const TcpOptions& options);
  ~TcpTransport() override;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string name() const override { return "TCP"; }
  Address address() override;
  void connect(std::span<const Address> addresses) override;
  void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) override;
  void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) override;
  void cancel(Transfer* transfer) override;
  bool progress() override;
  void wait(int milliseconds) override;
  void wake() override;
  void lose(int peer, const std::string& why) override;
  void leave(int peer, const std::string& why) override;
  bool close(bool abrupt, int milliseconds) override;
  std::string lastError() const override { return common_.lastError; }
  bool unexpected(Tag value, Tag mask, Tag* found) override;

  bool prepareToSleep(int* milliseconds) override;
  std::span<const int> sleepOn() const override { return sleepOn_; }
  void awake(std::span<const pollfd>) override { collect(0); }
  bool isBusy() const override { return common_.sends + common_.receives > 0; }
  bool drained() override;
  TimePoint lastErrorTime() const override { return common_.lastErrorTime; }
  // Whether every rank that lives has come to a close() in order. To be asked during that, between
  // calls of progress().
  bool hasMet();

 private:
  struct Peer {
    Peer(TcpCommon& common, int rank, std::size_t share) : core(common, rank, share) {}
    TcpPeer core;
    IpEndpoint endpoint;   // that this rank dials
    bool reached = false;  // it has been turned to, or has turned to this rank
    std::string left;      // why its connections will end; empty: they are to stay
    // By index; null: none yet. Sized when the peer is known.
    std::vector<std::unique_ptr<TcpConnection>> connections;
  };

  // tcp_transport.cc
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  void collect(int milliseconds);
  void sleep(int milliseconds);
  bool advanceAll();
  // Has the connection advanced if it can be.
  void list(TcpConnection& connection);
  void list(Peer& peer);
  // Writes what it can to a peer.
  void push(Peer& peer);
  void settle();
  void forget(TcpConnection& connection);
  void readLast(Peer& peer);
  // Transfers with it end with this status.
  void lose(Peer& peer, const std::string& why,
            TransferStatus status = TransferStatus::unreachable);
  TimePoint nextDeadline() const;

  // tcp_connect.cc
  void readAddress(Peer& peer, const Address& bytes);
  void reach(Peer& peer);
  TcpConnection& add(Peer& peer, std::size_t index);
  void dial(Peer& peer, TcpConnection& connection);
  void redial();
  void serve();
  void admit(Acceptor::Guest guest);
  bool watch(int fd, std::uint32_t events, void* data);

  // tcp_close.cc
  template <typename Condition>
  bool progressUntil(Condition condition, TimePoint deadline);
  void tell(Peer& peer, const FrameHeader& header);
  bool leaveInOrder(TimePoint deadline);
  bool hasLeft(Peer& peer) const;

  const int rank_, ranks_;
  const TcpOptions options_;
  std::size_t share_ = 0;  // of the memory, for each peer
  TcpCommon common_;
  FileDescriptor epoll_, woken_;
  int sleepOn_[1];
  std::optional<Acceptor> acceptor_;
  std::vector<IpEndpoint> endpoints_;         // of this rank
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; empty until connected
  std::size_t connections_ = 0;
  std::vector<TcpConnection*> ready_;    // to be advanced
  std::vector<TcpConnection*> ended_;    // to be settled
  std::vector<TcpConnection*> pausing_;  // to be dialed
  bool knocked_ = false;                 // at the port
  VainRings knocks_;
  TimePoint serveAt_ = kNever;      // while nobody listens for them
  int round_ = 0, roundsTold_ = 0;  // of the closing barrier
  bool closed_ = false;
};

}  // namespace moeccl

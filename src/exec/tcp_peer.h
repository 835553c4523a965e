// What a rank has to do with one of its peers over TCP: which message goes to which receive, what
// is sent next, and how much the peer may send unasked. It knows no socket: connections
// (tcp_connection.h) ask it for frames and give it those that arrive.
//
// Credit. A receiver has a share of its memory for each peer. A message that has been asked for
// needs none of it; since its sender cannot know that, all messages are charged to the share, and
// those asked for give it back at once. What exceeds the share is only announced, and its data
// follow when it is granted.
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "src/exec/tcp_frames.h"
#include "src/exec/tcp_memory.h"
#include "src/exec/transfer_list.h"

namespace moeccl {

// A message on its way in.
struct InboundMessage {
  std::uint32_t id = 0;
  Tag tag = 0;
  std::size_t bytes = 0;
  std::size_t promised = 0;  // by the frames that have begun to arrive
  std::size_t arrived = 0;
  std::size_t end = 0;     // it is over when so many have arrived; less than `bytes` once withdrawn
  std::size_t charge = 0;  // credit of its sender that has not been given back
  bool announced = false;  // none of its data has come, nor will before it is granted
  bool inOrder = true;     // what has arrived is its beginning
  std::byte* memory = nullptr;   // for all its bytes, of MessageMemory; none where it needs none
  Transfer* transfer = nullptr;  // the receive that it belongs to
};
using InboundMessages = std::pmr::list<InboundMessage>;

// What the peers of one rank share.
struct TcpCommon {
  explicit TcpCommon(std::size_t memoryBytes) : memory(memoryBytes), sink(std::size_t{64} << 10) {}

  MessageMemory memory;
  std::vector<std::byte> sink;          // for what nobody wants
  std::bitset<kSourceBits> barrier;     // rounds of the closing barrier that have come in
  std::size_t sends = 0, receives = 0;  // in flight
  std::int64_t dialMs = 0;              // how long a host that does not answer is dialed again
  bool closing = false;                 // what comes unasked will never be asked for
  bool ending = false;                  // transfers end as cancelled, whatever becomes of peers
  std::string lastError;
  std::chrono::steady_clock::time_point lastErrorTime{};
};

class TcpPeer {
 public:
  // The peer may send `share` bytes unasked.
  TcpPeer(TcpCommon& common, int rank, std::size_t share)
      : common_(common),
        rank_(rank),
        share_(share),
        unexpected_(&common.memory),
        flowing_(&common.memory) {}

  // Before anything else: who it is, for people, how much it lets this rank send unasked, and on
  // how many connections.
  void know(const std::string& name, std::size_t credit, int connections) {
    name_ = name;
    credit_ = credited_ = credit;
    connections_ = connections;
  }
  int rank() const { return rank_; }
  const std::string& name() const { return name_; }

  void send(Transfer* transfer);
  void recv(Transfer* transfer);
  // A send and a receive of this rank with itself.
  void sendHere(Transfer* transfer);
  void recvHere(Transfer* transfer);
  // Connections have stopped using the data of a send.
  void cancel(Transfer* transfer);
  // A message without a receive whose tag agrees with `value` in the bits of `mask`.
  bool unexpected(Tag value, Tag mask, Tag* found) const;
  // Refuses announced messages: nobody will want them.
  void refuseAnnounced();
  // The peer is gone, or this rank is.
  void lose(const std::string& why, TransferStatus status);
  bool gone() const { return gone_; }
  // The peer has said goodbye.
  void leaves() { isLeaving_ = true; }
  bool isLeaving() const { return isLeaving_; }

  // ------------------------------------------------------------------------------- to connections

  struct Outgoing {
    FrameHeader header;
    const std::byte* data = nullptr;  // of the payload
    Transfer* transfer = nullptr;     // whose data they are; written() wants to hear of it
  };
  // The next frame for a connection; false: none. Messages begin on the main one, in order.
  bool pull(bool main, Outgoing* out);
  void written(Transfer* transfer, std::size_t payload);
  // A frame that is not about data in this direction, for the main connection, before others.
  // Throws std::bad_alloc.
  void tell(const FrameHeader& header);
  std::vector<std::byte>& control() { return control_; }
  bool hasOutput(bool main) const {
    return !streaming_.empty() || (main && !(waiting_.empty() && control_.empty()));
  }

  enum class Verdict {
    taken,
    early,  // a part of a message that another connection will begin; ask again then
    bad,    // no frame that an honest peer sends here
  };
  struct Incoming {
    InboundMessages::iterator message;
    std::size_t offset = 0, left = 0;  // of the message's data that follow
  };
  // A frame about data, whichever. `left` is 0 when none follow.
  Verdict take(const FrameHeader& header, bool main, Incoming* incoming);
  // Where the next of these bytes belong, never empty; changes whenever anything else is called.
  std::span<std::byte> placeOf(const Incoming& incoming);
  // So many have been put there.
  void arrived(Incoming* incoming, std::size_t bytes);
  // Gives credit back by a frame of its own, once that is worth it.
  void giveCreditBack();

 private:
  // `to` and `from` may be nullptr for no bytes.
  static void copyBytes(std::byte* to, const std::byte* from, std::size_t bytes);
  Verdict begin(const FrameHeader& header, Incoming* incoming);
  Verdict more(const FrameHeader& header, bool main, Incoming* incoming);
  Verdict withdraw(const FrameHeader& header);
  Transfer* takePosted(Tag tag);
  InboundMessages::iterator find(InboundMessages& list, std::uint32_t id);
  void grant(InboundMessage& message);
  void settle(InboundMessage& message);
  void release(InboundMessage& message);
  void recycle(InboundMessages& list, InboundMessages::iterator message);
  void deliver(InboundMessages::iterator message);
  void finish(Transfer* transfer, TransferStatus status, std::size_t bytes);
  void finishAll(TransferList& list);
  Transfer* announcedSend(std::uint32_t id);
  std::uint32_t takeOwed();

  TcpCommon& common_;
  const int rank_;
  const std::size_t share_;
  std::string name_;
  int connections_ = 1;
  bool gone_ = false, isLeaving_ = false;
  std::string whyGone_;
  TransferStatus goneAs_ = TransferStatus::unreachable;

  // Sends, in the order of their lives.
  TransferList waiting_;    // not begun
  TransferList announced_;  // not granted
  TransferList streaming_;  // with parts to be begun
  TransferList leaving_;    // with all begun, not all with the kernel
  std::uint32_t nextId_ = 1;
  bool partsTurn_ = false;
  std::size_t credit_ = 0, credited_ = 0;  // now, and at most
  std::vector<std::byte> control_;

  // Receives, and messages.
  TransferList posted_;
  InboundMessages unexpected_;     // without a receive, in the order in which they began
  InboundMessages flowing_;        // with a receive, or for nobody, and not complete
  std::size_t announcedToUs_ = 0;  // and not answered
  std::size_t held_ = 0;           // of the share, by what the peer knows
  std::size_t owed_ = 0;           // free again, which it does not know
};

}  // namespace moeccl

// Moves bytes between the ranks of one job. All that differs between the loopback (ranks as
// threads), TCP and UCX (ranks as processes) is behind this interface; it knows no plan and no
// collective.
//
// Ranks are those of the root communicator. Only one thread at a time may use a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/exec/tag.h"

namespace moeccl {

enum class TransferStatus : std::uint8_t {
  ok,
  truncated,    // the message was longer than the buffer
  cancelled,    // by cancel()
  unreachable,  // the peer is gone
  failed,       // anything else; Transport::lastError() has the details
};

// The links of a TransferList (transfer_list.h).
struct TransferLink {
  TransferLink* previous = nullptr;
  TransferLink* next = nullptr;
};

class Transport;

// One send or receive in flight. Owned by the caller, who keeps it until `done` has been called.
class Transfer : public TransferLink {
 public:
  // `bytes`: of the message (receives only), of which `truncated` has left some out. May be called
  // from inside send, recv, progress, cancel and close. May start and cancel further transfers; a
  // transfer that starts here may be done before send or recv returns, so a chain of them nests.
  using Done = void (*)(Transfer* self, TransferStatus status, std::size_t bytes);

  Done done = nullptr;

  // The transport's own while the transfer is in flight.
  struct Flight {
    const Transport* carrier = nullptr;  // of several as one
    void* request = nullptr;
    const std::byte* from = nullptr;  // of a send
    std::byte* to = nullptr;          // of a receive
    std::size_t bytes = 0;
    std::size_t begun = 0,
                moved = 0;  // of a send over TCP: what has been put into frames, and what has left
    Tag tag = 0;
    std::uint32_t id = 0;  // of a message over TCP; 0: not begun. Over UCX: of an announced one
    std::int32_t peer = -1;
    bool isSend = false;
    bool inFlight = false;                       // done has not been called
    bool completed = false;                      // by the other side; done is about to be called
    bool cancelled = false;                      // by cancel()
    bool granted = false;                        // a receive that has asked for what was announced
    bool withdrawn = false;                      // a receive over UCX whose message is cancelled
    bool buffered = false;                       // a copy, see BufferedMessage
    TransferStatus status = TransferStatus::ok;  // once completed: of the loopback,
    int result = 0;                              // of UCX
  } flight;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // What moves the bytes, with its version where it is a library: "UCX 1.13.1".
  virtual std::string name() const = 0;

  // A life begins with an exchange: each rank hands out address(), and gives connect() those of all
  // ranks, its own included. Both throw std::runtime_error.
  using Address = std::vector<std::byte>;
  virtual Address address() = 0;
  virtual void connect(std::span<const Address> addresses) = 0;

  // Starts a transfer of `bytes` bytes (0 is a message too). `transfer->done` is called exactly
  // once, possibly before this returns. The data must stay until then. A message goes to the first
  // receive of exactly its tag, whose source field is the sender's rank; it may come long before or
  // after the receive is posted. Whether a send completes before its receive is posted depends on
  // the transport and the size. A send that is done needs nothing more of its rank. A receive
  // longer than its message is `ok`, a shorter one `truncated`. What a rank sent before it ended
  // may still arrive; then everything is `unreachable`.
  virtual void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) = 0;
  virtual void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) = 0;
  // Ends a transfer early; `done` is called with `cancelled` (or with its real outcome), now or in
  // a later progress(). Over UCX a message that is already under way ends with the peer's help: a
  // peer with which that takes longer than two seconds loses the connection, and the two ranks are
  // `unreachable` to each other from then on.
  virtual void cancel(Transfer* transfer) = 0;

  // Whether a message has arrived, of whatever size, that no receive has been posted for and whose
  // tag agrees with `value` in the bits of `mask`; *found is then the tag of one. It stays where it
  // is. What arrives is seen after the next progress().
  virtual bool unexpected(Tag value, Tag mask, Tag* found) = 0;

  // Calls `done` for what has completed; returns whether anything happened.
  virtual bool progress() = 0;
  // Sleeps until progress() has something to do, but no longer than `milliseconds`.
  virtual void wait(int milliseconds) = 0;
  // Makes a wait() of another thread return. The one function that any thread may call at any time.
  virtual void wake() = 0;

  // The peer is known to be dead, for which a transport need not wait to find out: what is in
  // flight with it ends as `unreachable`, after what of it has arrived. Opens nothing.
  virtual void lose(int peer, const std::string& why) = 0;
  // The peer has ended its part in order. What it has sent may still be on its way, and arrives:
  // where a connection ends by itself after that, the peer is lost then, else at once.
  virtual void leave(int peer, const std::string& why) { lose(peer, why); }

  // Ends the connection; collective unless `abrupt`. Transfers still in flight at the end are
  // `cancelled`; nothing may be started afterwards. Destruction without it closes abruptly.
  //   in order   returns when everything sent has been handed over and every rank that lives has
  //              called close too, or, with `false`, when `milliseconds` have passed
  //   abrupt     waits for nobody
  virtual bool close(bool abrupt, int milliseconds) = 0;
  // What a close() in order calls while it waits. It may call lose() and leave().
  std::function<void()> whileClosing = [] {};

  // Details of the last failed or unreachable transfer, for people. It names hosts and processes,
  // not ranks: the caller's numbering is another.
  virtual std::string lastError() const = 0;
};

// Ranks as threads of one process. Sends of `eagerBelow` bytes or more complete only when their
// receive is posted, as on the weaker machine; 0 makes every send do so, SIZE_MAX none.
inline constexpr std::size_t kLoopbackEagerBelow = 4096;
std::unique_ptr<Transport> makeLoopbackTransport(int rank, int ranks,
                                                 std::size_t eagerBelow = kLoopbackEagerBelow);

}  // namespace moeccl

// Ranks as threads of one process. The second of a send and its receive to come copies the message.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "src/base/text.h"
#include "src/exec/loopback_mailbox.h"

namespace moeccl {
namespace {

using Clock = std::chrono::steady_clock;

struct LoopbackAddress {
  char magic[8] = {'m', 'o', 'e', 'c', 'c', 'l', 'L', '1'};
  std::uint64_t process = 0;
  std::uint64_t mailbox = 0;
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
};

Transfer* takeByTag(TransferList& list, Tag tag) {
  for (Transfer* transfer = list.front(); transfer; transfer = list.after(transfer)) {
    if (transfer->flight.tag != tag) continue;
    TransferList::remove(transfer);
    return transfer;
  }
  return nullptr;
}

// Ends the sends of `sender` that wait for a receive; both mailboxes are locked.
void refuse(Mailbox::Sender& sender, Mailbox& senders) {
  while (Transfer* message = sender.arrived.popFront())
    if (!message->flight.buffered) senders.complete(message, TransferStatus::unreachable);
}

// Copies a message into its receive, whose size becomes the message's.
TransferStatus copyMessage(Transfer* receive, const std::byte* data, std::size_t bytes) {
  const std::size_t room = receive->flight.bytes;
  const bool truncated = bytes > room;
  receive->flight.bytes = bytes;
  if (std::min(bytes, room) > 0) std::memcpy(receive->flight.to, data, std::min(bytes, room));
  return truncated ? TransferStatus::truncated : TransferStatus::ok;
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(int rank, int ranks, std::size_t eagerBelow);
  ~LoopbackTransport() override { close(true, 0); }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string name() const override { return "loopback"; }
  Address address() override;
  void connect(std::span<const Address> addresses) override;
  void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) override;
  void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) override;
  void cancel(Transfer* transfer) override;
  bool unexpected(Tag value, Tag mask, Tag* found) override;
  bool progress() override;
  void wait(int milliseconds) override;
  void wake() override;
  // A thread that leaves says so itself.
  void lose(int, const std::string&) override {}
  bool close(bool abrupt, int milliseconds) override;
  std::string lastError() const override { return lastError_; }

 private:
  Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<std::size_t>(rank)]; }
  static Mailbox::Sender& sender(Mailbox& mailbox, int rank) {
    return mailbox.from[static_cast<std::size_t>(rank)];
  }

  // `transfer` ends: with what its flight says.
  void finish(Transfer* transfer, TransferStatus status);
  template <typename Condition>
  bool progressUntil(Condition condition, Clock::time_point deadline);
  bool everyoneSaidGoodbye();
  void refuseArrived(int peer);
  void leave(int peer);

  const int rank_, ranks_;
  const std::size_t eagerBelow_;
  const std::shared_ptr<Mailbox> own_;
  const std::uint64_t number_;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;  // by rank; empty until connected
  std::size_t sendsInFlight_ = 0;
  bool closed_ = false;
  std::string lastError_;
};

LoopbackTransport::LoopbackTransport(int rank, int ranks, std::size_t eagerBelow)
    : rank_(rank),
      ranks_(ranks),
      eagerBelow_(eagerBelow),
      own_(std::make_shared<Mailbox>(ranks)),
      number_(registerMailbox(own_)) {}

Transport::Address LoopbackTransport::address() {
  LoopbackAddress address;
  address.process = processCookie();
  address.mailbox = number_;
  address.rank = rank_;
  address.ranks = ranks_;
  Address bytes(sizeof address);
  std::memcpy(bytes.data(), &address, sizeof address);
  return bytes;
}

void LoopbackTransport::connect(std::span<const Address> addresses) {
  if (addresses.size() != static_cast<std::size_t>(ranks_))
    throw std::runtime_error(
        stringf("rank %d: connect got %zu addresses, expected one for each of %d ranks", rank_,
                addresses.size(), ranks_));
  std::vector<std::shared_ptr<Mailbox>> found;
  for (int peer = 0; peer < ranks_; ++peer) {
    const Address& bytes = addresses[static_cast<std::size_t>(peer)];
    LoopbackAddress address;
    const LoopbackAddress expected;
    if (bytes.size() == sizeof address) std::memcpy(&address, bytes.data(), sizeof address);
    if (bytes.size() != sizeof address ||
        std::memcmp(address.magic, expected.magic, sizeof address.magic) != 0)
      throw std::runtime_error(
          stringf("rank %d: the address of rank %d is not a loopback address", rank_, peer));
    if (address.process != processCookie())
      throw std::runtime_error(stringf(
          "rank %d: rank %d is in another process; the loopback transport connects threads of one",
          rank_, peer));
    if (address.rank != peer || address.ranks != ranks_)
      throw std::runtime_error(
          stringf("rank %d: address %d is that of rank %d of %d, expected rank %d of %d", rank_,
                  peer, address.rank, address.ranks, peer, ranks_));
    found.push_back(findMailbox(address.mailbox));
    if (!found.back())
      throw std::runtime_error(stringf("rank %d: rank %d has left already", rank_, peer));
  }
  mailboxes_ = std::move(found);
}

void LoopbackTransport::finish(Transfer* transfer, TransferStatus status) {
  Transfer::Flight& flight = transfer->flight;
  flight.inFlight = false;
  if (flight.isSend) --sendsInFlight_;
  if (status == TransferStatus::unreachable)
    lastError_ = stringf("%s a thread that has left", flight.isSend ? "send to" : "receive from");
  transfer->done(transfer, status, flight.bytes);
}

void LoopbackTransport::send(int peer, Tag tag, const void* data, std::size_t bytes,
                             Transfer* transfer) {
  transfer->flight = {.from = static_cast<const std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = peer,
                      .isSend = true,
                      .inFlight = true};
  ++sendsInFlight_;
  if (closed_) return finish(transfer, TransferStatus::cancelled);

  Mailbox& theirs = mailbox(peer);
  TransferStatus status = TransferStatus::ok;
  {
    const PairLock lock(*own_, theirs);
    Mailbox::Sender& me = sender(theirs, rank_);
    if (sender(*own_, peer).gone) {
      status = TransferStatus::unreachable;
    } else if (Transfer* receive = takeByTag(me.posted, tag)) {
      theirs.complete(receive, copyMessage(receive, transfer->flight.from, bytes));
    } else if (theirs.closing) {
      status = TransferStatus::unreachable;
    } else if (BufferedMessage* const copy = bytes < eagerBelow_
                                                 ? theirs.buffer(tag, transfer->flight.from, bytes)
                                                 : nullptr) {
      me.arrived.pushBack(copy);
    } else {
      me.arrived.pushBack(transfer);
      return;
    }
  }
  finish(transfer, status);
}

void LoopbackTransport::recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) {
  transfer->flight = {.to = static_cast<std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = peer,
                      .inFlight = true};
  if (closed_) return finish(transfer, TransferStatus::cancelled);

  Mailbox& theirs = mailbox(peer);
  TransferStatus status = TransferStatus::unreachable;
  {
    const PairLock lock(*own_, theirs);
    Mailbox::Sender& them = sender(*own_, peer);
    if (Transfer* message = takeByTag(them.arrived, tag)) {
      status = copyMessage(transfer, message->flight.from, message->flight.bytes);
      if (message->flight.buffered) {
        own_->recycle(static_cast<BufferedMessage*>(message));
      } else {
        theirs.complete(message, TransferStatus::ok);
      }
    } else if (!them.gone) {
      them.posted.pushBack(transfer);
      return;
    }
  }
  finish(transfer, status);
}

void LoopbackTransport::cancel(Transfer* transfer) {
  if (!transfer->flight.inFlight) return;
  {
    const PairLock lock(*own_, mailbox(transfer->flight.peer));
    if (transfer->flight.completed) return;
    TransferList::remove(transfer);
  }
  finish(transfer, TransferStatus::cancelled);
}

bool LoopbackTransport::unexpected(Tag value, Tag mask, Tag* found) {
  const std::lock_guard lock(own_->mutex);
  for (Mailbox::Sender& sender : own_->from)
    for (const Transfer* message = sender.arrived.front(); message;
         message = sender.arrived.after(message)) {
      if (((message->flight.tag ^ value) & mask) != 0) continue;
      *found = message->flight.tag;
      return true;
    }
  return false;
}

bool LoopbackTransport::progress() {
  if (!own_->anyCompleted.load(std::memory_order_acquire)) return false;
  TransferList completed;
  {
    const std::lock_guard lock(own_->mutex);
    completed.append(own_->completed);
    own_->anyCompleted.store(false, std::memory_order_relaxed);
  }
  while (Transfer* transfer = completed.popFront()) finish(transfer, transfer->flight.status);
  return true;
}

void LoopbackTransport::wait(int milliseconds) {
  std::unique_lock lock(own_->mutex);
  own_->ready.wait_for(lock, std::chrono::milliseconds(milliseconds),
                       [this] { return own_->woken || !own_->completed.empty(); });
  own_->woken = false;
}

void LoopbackTransport::wake() {
  const std::lock_guard lock(own_->mutex);
  own_->wake();
}

template <typename Condition>
bool LoopbackTransport::progressUntil(Condition condition, Clock::time_point deadline) {
  while (!condition()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (!progress()) wait(static_cast<int>(left));
  }
  return true;
}

bool LoopbackTransport::everyoneSaidGoodbye() {
  const std::lock_guard lock(own_->mutex);
  return std::ranges::all_of(
      own_->from, [](const Mailbox::Sender& sender) { return sender.goodbye || sender.gone; });
}

void LoopbackTransport::refuseArrived(int peer) {
  Mailbox& theirs = mailbox(peer);
  const PairLock lock(*own_, theirs);
  refuse(sender(*own_, peer), theirs);
}

void LoopbackTransport::leave(int peer) {
  Mailbox& theirs = mailbox(peer);
  const PairLock lock(*own_, theirs);
  Mailbox::Sender &me = sender(theirs, rank_), &them = sender(*own_, peer);
  // What they have been handed in full stays theirs; sends that wait for a receive do not.
  for (Transfer* message = me.arrived.front(); message;) {
    Transfer* const next = me.arrived.after(message);
    if (!message->flight.buffered) {
      TransferList::remove(message);
      own_->complete(message, TransferStatus::cancelled);
    }
    message = next;
  }
  while (Transfer* receive = them.posted.popFront())
    own_->complete(receive, TransferStatus::cancelled);
  refuse(them, theirs);
  while (Transfer* receive = me.posted.popFront())
    theirs.complete(receive, TransferStatus::unreachable);
  me.gone = true;
  theirs.wake();
}

bool LoopbackTransport::close(bool abrupt, int milliseconds) {
  if (closed_) return true;
  bool inOrder = true;
  if (!abrupt) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds);
    // What is here without a receive, or comes from now on, belongs to calls that failed; its
    // sender may be closing too, and waits for it to end.
    {
      const std::lock_guard lock(own_->mutex);
      own_->closing = true;
    }
    for (int peer = 0; peer < static_cast<int>(mailboxes_.size()); ++peer) refuseArrived(peer);
    inOrder = progressUntil([this] { return sendsInFlight_ == 0; }, deadline);
    for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_) {
      const std::lock_guard lock(mailbox->mutex);
      sender(*mailbox, rank_).goodbye = true;
      mailbox->wake();
    }
    if (!mailboxes_.empty())
      inOrder &= progressUntil([this] { return everyoneSaidGoodbye(); }, deadline);
  }
  closed_ = true;
  unregisterMailbox(number_);
  for (int peer = 0; peer < static_cast<int>(mailboxes_.size()); ++peer) leave(peer);
  progress();
  return inOrder;
}

}  // namespace

std::unique_ptr<Transport> makeLoopbackTransport(int rank, int ranks, std::size_t eagerBelow) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw std::runtime_error(
        stringf("rank %d of %d ranks: expected 0 <= rank < ranks", rank, ranks));
  return std::make_unique<LoopbackTransport>(rank, ranks, eagerBelow);
}

}  // namespace moeccl

// What the ranks of a loopback job share: one mailbox per rank, found by its number.
//
// Locks. A message between ranks a and b touches the mailboxes of both, so whoever moves it holds
// both mutexes (PairLock). Nothing else is ever locked with them, and `done` is called with none
// held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "src/exec/transfer_list.h"

namespace moeccl {

// A message that its sender is done with.
struct BufferedMessage : Transfer {
  std::vector<std::byte> copy;
};

struct Mailbox {
  explicit Mailbox(int ranks) : from(static_cast<std::size_t>(ranks)) {}

  struct Sender {
    TransferList posted;   // receives of the owner, without a message
    TransferList arrived;  // messages, without a receive: the sender's own transfers or buffers
    bool goodbye = false;  // it will send nothing any more
    bool gone = false;     // it has left
  };

  // Under the mutex from here on.
  std::mutex mutex;
  std::condition_variable ready;
  std::vector<Sender> from;  // by rank
  TransferList completed;    // the owner's, for its progress()
  bool woken = false;
  bool closing = false;  // the owner posts no receive any more

  // Lets the owner's progress() look without the mutex.
  std::atomic<bool> anyCompleted = false;

  void complete(Transfer* transfer, TransferStatus status) {
    transfer->flight.status = status;
    transfer->flight.completed = true;
    completed.pushBack(transfer);
    anyCompleted.store(true, std::memory_order_release);
    ready.notify_one();
  }
  void wake() {
    woken = true;
    ready.notify_one();
  }

  // A copy; null where there is no memory for one.
  BufferedMessage* buffer(Tag tag, const std::byte* data, std::size_t bytes);
  void recycle(BufferedMessage* message) { spare_.pushBack(message); }

 private:
  std::vector<std::unique_ptr<BufferedMessage>> buffers_;
  TransferList spare_;
};

class PairLock {
 public:
  PairLock(Mailbox& a, Mailbox& b) : a_(a.mutex, std::defer_lock), b_(b.mutex, std::defer_lock) {
    if (&a == &b) {
      a_.lock();
    } else {
      std::lock(a_, b_);
    }
  }

 private:
  std::unique_lock<std::mutex> a_, b_;
};

// The mailboxes of this process, by a number that never comes again.
std::uint64_t registerMailbox(const std::shared_ptr<Mailbox>& mailbox);
void unregisterMailbox(std::uint64_t number);
std::shared_ptr<Mailbox> findMailbox(std::uint64_t number);  // null: not or no longer there
// Tells this process from every other one.
std::uint64_t processCookie();

}  // namespace moeccl

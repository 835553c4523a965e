// A queue of transfers that costs no memory: the links are in the transfers. A transfer is in at
// most one list.
#pragma once

#include "src/exec/transport.h"

namespace moeccl {

class TransferList {
 public:
  TransferList() { ends_.previous = ends_.next = &ends_; }
  TransferList(const TransferList&) = delete;
  TransferList& operator=(const TransferList&) = delete;

  bool empty() const { return ends_.next == &ends_; }
  Transfer* front() { return empty() ? nullptr : static_cast<Transfer*>(ends_.next); }
  // The one after `transfer`, or null.
  Transfer* after(const Transfer* transfer) {
    return transfer->next == &ends_ ? nullptr : static_cast<Transfer*>(transfer->next);
  }

  void pushBack(Transfer* transfer) {
    transfer->previous = ends_.previous;
    transfer->next = &ends_;
    ends_.previous->next = transfer;
    ends_.previous = transfer;
  }
  void pushFront(Transfer* transfer) {
    transfer->previous = &ends_;
    transfer->next = ends_.next;
    ends_.next->previous = transfer;
    ends_.next = transfer;
  }
  // Takes a transfer out of whatever list it is in.
  static void remove(Transfer* transfer) {
    transfer->previous->next = transfer->next;
    transfer->next->previous = transfer->previous;
    transfer->previous = transfer->next = nullptr;
  }
  Transfer* popFront() {
    Transfer* first = front();
    if (first) remove(first);
    return first;
  }
  // Moves all of `other` to the end of this list.
  void append(TransferList& other) {
    if (other.empty()) return;
    ends_.previous->next = other.ends_.next;
    other.ends_.next->previous = ends_.previous;
    ends_.previous = other.ends_.previous;
    ends_.previous->next = &ends_;
    other.ends_.previous = other.ends_.next = &other.ends_;
  }

 private:
  TransferLink ends_;
};

}  // namespace moeccl

// Credit: what peers may send before anybody asks for it.
//
// UCX keeps such messages in memory without a bound. So a receiver has a share of memory for each
// peer, every message is charged to it, and its receiver gives the charge back, by control
// messages. What exceeds the credit is only announced. Its data follow once a receive of its tag is
// there:
//
//    sender                       receiver
//     announce: id, tag  ──────▶
//                        ◀──────   grant, once it is asked for, or unwanted
//     the message        ──────▶
//     withdraw: id, tag  ──────▶   instead, where it is cancelled
//                        ◀──────   credit, when half of the share is owed
//
// A message does not overtake an announced one of its tag. A receive may ask for one although an
// earlier message of its tag is on its way: then one comes unasked, which costs memory alone.
#include <algorithm>
#include <utility>

#include "src/exec/ucx_transport.h"

namespace moeccl {
namespace {

// UCX (1.13) copies what fits into the FIFO, and keeps its piece of shared memory, whose size is
// fixed, of what does not. Beyond some size it brings nothing before it is asked for.
constexpr std::size_t kInFifo = 64, kCopied = 320;
constexpr std::size_t kPiece = 8000, kPieceMemory = 8704;
constexpr std::size_t kMostAtOnce = std::size_t{64} << 10;

}  // namespace

std::int64_t UcxTransport::chargeOf(std::size_t bytes) {
  if (bytes <= kInFifo) return kCopied;
  return static_cast<std::int64_t>((std::min(bytes, kMostAtOnce) / kPiece + 1) * kPieceMemory);
}

bool UcxTransport::mayBegin(Peer& to, const Transfer& send) {
  const auto sameTag = [&] {
    for (Transfer* each = to.announced.front(); each != nullptr; each = to.announced.after(each))
      if (each->flight.tag == send.flight.tag) return true;
    return false;
  };
  const std::int64_t charge = chargeOf(send.flight.bytes);
  if (charge > to.credit || sameTag()) return false;
  to.credit -= charge;
  return true;
}

void UcxTransport::announce(Peer& to, Transfer* send) {
  send->flight.id = nextId_;
  nextId_ = nextId_ == ~std::uint32_t{0} ? 1 : nextId_ + 1;
  to.announced.pushBack(send);
  say(to, Control::Kind::announce, send->flight.tag, send->flight.id);
}

void UcxTransport::withdraw(Transfer* send) {
  Peer& to = peer(send->flight.peer);
  TransferList::remove(send);
  say(to, Control::Kind::withdraw, send->flight.tag, send->flight.id);
  send->flight.cancelled = true;
  finish(send, UCS_ERR_CANCELED, 0);
}

void UcxTransport::say(Peer& to, Control::Kind kind, Tag tag, std::uint64_t number) {
  Control& control = newControl(kind);
  control.message.tag = tag;
  control.message.number = number;
  post(control, to);
  release(control);
}

// Owes the charge of a message of so many bytes, which is in UCX's memory no more.
void UcxTransport::owe(Peer& to, std::size_t bytes) {
  const std::int64_t before = to.owed;
  to.owed += chargeOf(bytes);
  if (before <= share_ / 2 && to.owed > share_ / 2) owing_.push_back(to.rank);
}

void UcxTransport::settleCredit() {
  if (peers_.empty()) return;  // not connected yet
  for (; !owing_.empty(); owing_.pop_back()) {
    Peer& to = peer(owing_.back());
    say(to, Control::Kind::credit, 0, static_cast<std::uint64_t>(std::exchange(to.owed, 0)));
  }
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    const Control::Message message = arrived_[i];
    Peer& from = peer(message.source);
    switch (message.kind) {
      case Control::Kind::announce:
        announced(from, message.tag, message.number);
        break;
      case Control::Kind::withdraw:
        withdrawn(from, message.tag, message.number);
        break;
      case Control::Kind::credit:
        from.credit += static_cast<std::int64_t>(message.number);
        break;
      default:
        answered(from, message.number, message.kind == Control::Kind::grant);
    }
  }
  arrived_.clear();
}

void UcxTransport::announced(Peer& from, Tag tag, std::uint64_t id) {
  if (closing_) return say(from, Control::Kind::unwanted, tag, id);
  if (from.gone) return;
  from.offers.push_back({tag, id});
  for (Transfer* each = from.pending.front(); each != nullptr; each = from.pending.after(each))
    if (!each->flight.isSend && each->flight.tag == tag && !each->flight.granted)
      return grantTo(from, each);
}

// Asks for the first message of the receive's tag that is announced, if one is.
void UcxTransport::grantTo(Peer& from, Transfer* receive) {
  const auto offer = std::ranges::find(from.offers, receive->flight.tag, &Offer::tag);
  if (offer == from.offers.end()) return;
  receive->flight.granted = true;
  say(from, Control::Kind::grant, offer->tag, offer->id);
  from.offers.erase(offer);
}

void UcxTransport::withdrawn(Peer& from, Tag tag, std::uint64_t id) {
  if (std::erase_if(from.offers, [id](const Offer& offer) { return offer.id == id; }) > 0) return;
  // It was granted: the receive that asked for it waits for another.
  for (Transfer* each = from.pending.front(); each != nullptr; each = from.pending.after(each))
    if (!each->flight.isSend && each->flight.tag == tag) {
      each->flight.granted = false;
      grantTo(from, each);
    }
}

void UcxTransport::answered(Peer& from, std::uint64_t id, bool granted) {
  for (Transfer* each = from.announced.front(); each != nullptr;
       each = from.announced.after(each)) {
    if (each->flight.id != id) continue;
    TransferList::remove(each);
    each->flight.id = 0;
    if (granted) {
      from.credit -= chargeOf(each->flight.bytes);
      return begin(from, each);
    }
    each->flight.cancelled = true;
    return finish(each, UCS_ERR_CANCELED, 0);
  }
  // It has been withdrawn meanwhile.
}

void UcxTransport::refuseOffers() {
  closing_ = true;
  for (Peer& from : peers_) {
    for (const Offer& offer : from.offers) say(from, Control::Kind::unwanted, offer.tag, offer.id);
    from.offers.clear();
  }
}

}  // namespace moeccl

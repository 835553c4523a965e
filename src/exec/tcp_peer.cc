// Matches receives with messages by tag, and cuts sends into frames.
#include "src/exec/tcp_peer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/text.h"

namespace moeccl {

void TcpPeer::copyBytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// ---------------------------------------------------------------------------------- the caller

void TcpPeer::send(Transfer* transfer) {
  ++common_.sends;
  if (gone_) return finish(transfer, TransferStatus::unreachable, 0);
  waiting_.pushBack(transfer);
}

void TcpPeer::recv(Transfer* transfer) {
  ++common_.receives;
  const auto found = std::ranges::find(unexpected_, transfer->flight.tag, &InboundMessage::tag);
  if (found == unexpected_.end()) {
    if (gone_) return finish(transfer, TransferStatus::unreachable, 0);
    return posted_.pushBack(transfer);
  }
  Transfer::Flight& flight = transfer->flight;
  InboundMessage& message = *found;
  message.transfer = transfer;
  flight.request = &message;
  flowing_.splice(flowing_.end(), unexpected_, found);
  if (message.announced) {
    grant(message);
    if (message.end > 0) return;  // its data follow
  }
  if (message.arrived == message.end) return deliver(found);
  if (!message.inOrder) return;
  // The rest goes straight to its place.
  copyBytes(flight.to, message.memory, std::min(message.arrived, flight.bytes));
  release(message);
}

void TcpPeer::cancel(Transfer* transfer) {
  Transfer::Flight& flight = transfer->flight;
  flight.cancelled = true;
  if (!flight.isSend) {
    if (flight.request != nullptr) {
      auto& message = *static_cast<InboundMessage*>(flight.request);
      message.transfer = nullptr;
      release(message);  // and what comes is for nobody
    } else {
      TransferList::remove(transfer);
    }
  } else {
    const bool isOver = flight.begun == flight.bytes && announcedSend(flight.id) == nullptr;
    TransferList::remove(transfer);
    if (flight.id != 0 && !isOver)
      tell({.kind = FrameKind::withdraw, .id = flight.id, .value = flight.begun});
  }
  finish(transfer, TransferStatus::cancelled, 0);
}

void TcpPeer::sendHere(Transfer* transfer) {
  ++common_.sends;
  const Transfer::Flight& flight = transfer->flight;
  Transfer* const receive = takePosted(flight.tag);
  if (receive == nullptr) return waiting_.pushBack(transfer);
  const std::size_t room = receive->flight.bytes, bytes = std::min(flight.bytes, room);
  copyBytes(receive->flight.to, flight.from, bytes);
  const std::size_t sent = flight.bytes;
  finish(transfer, TransferStatus::ok, bytes);
  finish(receive, sent <= room ? TransferStatus::ok : TransferStatus::truncated, sent);
}

void TcpPeer::recvHere(Transfer* transfer) {
  ++common_.receives;
  posted_.pushBack(transfer);
  for (Transfer* sent = waiting_.front(); sent != nullptr; sent = waiting_.after(sent)) {
    if (sent->flight.tag != transfer->flight.tag) continue;
    TransferList::remove(sent);
    --common_.sends;
    return sendHere(sent);
  }
}

bool TcpPeer::unexpected(Tag value, Tag mask, Tag* found) const {
  for (const InboundMessage& message : unexpected_) {
    if (((message.tag ^ value) & mask) != 0) continue;
    *found = message.tag;
    return true;
  }
  return false;
}

void TcpPeer::refuseAnnounced() {
  for (auto at = unexpected_.begin(); at != unexpected_.end();) {
    const auto next = std::next(at);
    if (at->announced) {
      tell({.kind = FrameKind::refuse, .id = at->id});
      recycle(unexpected_, at);
    }
    at = next;
  }
}

void TcpPeer::lose(const std::string& why, TransferStatus status) {
  if (gone_) return;
  gone_ = true;
  whyGone_ = why;
  goneAs_ = status;
  control_.clear();
  // What has arrived whole can still be received.
  for (auto at = unexpected_.begin(); at != unexpected_.end();) {
    const auto next = std::next(at);
    if (at->announced || at->arrived < at->end) recycle(unexpected_, at);
    at = next;
  }
  while (!flowing_.empty()) {
    Transfer* const transfer = flowing_.front().transfer;
    recycle(flowing_, flowing_.begin());
    if (transfer != nullptr) finish(transfer, TransferStatus::unreachable, 0);
  }
  for (TransferList* list : {&posted_, &leaving_, &streaming_, &announced_, &waiting_})
    finishAll(*list);
}

void TcpPeer::finishAll(TransferList& list) {
  while (Transfer* transfer = list.popFront()) finish(transfer, TransferStatus::unreachable, 0);
}

void TcpPeer::finish(Transfer* transfer, TransferStatus status, std::size_t bytes) {
  Transfer::Flight& flight = transfer->flight;
  flight.inFlight = false;
  --(flight.isSend ? common_.sends : common_.receives);
  if (status == TransferStatus::unreachable && common_.ending) status = TransferStatus::cancelled;
  if (status == TransferStatus::unreachable) {
    common_.lastErrorTime = std::chrono::steady_clock::now();
    common_.lastError =
        stringf("%s of %zu bytes %s %s: %s", flight.isSend ? "send" : "receive", flight.bytes,
                flight.isSend ? "to" : "from", name_.c_str(), whyGone_.c_str());
    status = goneAs_;
  }
  transfer->done(transfer, status, bytes);
}

// ------------------------------------------------------------------------------------- sending

bool TcpPeer::pull(bool main, Outgoing* out) {
  const bool part = !streaming_.empty() && (!main || waiting_.empty() || partsTurn_);
  if (!part && (!main || waiting_.empty())) return false;
  if (main) partsTurn_ = !part;
  Transfer* const transfer = part ? streaming_.front() : waiting_.front();
  Transfer::Flight& flight = transfer->flight;
  if (!part) {
    flight.id = nextId_;
    nextId_ = nextId_ == std::numeric_limits<std::uint32_t>::max() ? 1 : nextId_ + 1;
  }
  out->header = {.kind = part ? FrameKind::part : FrameKind::message, .id = flight.id};
  out->header.freed = takeOwed();
  out->header.value = part ? flight.begun : flight.tag;
  out->header.bytes = flight.bytes;
  TransferList::remove(transfer);
  if (!part && chargeOf(flight.bytes) > credit_) {
    out->header.announced = 1;
    announced_.pushBack(transfer);
    out->transfer = nullptr;
    return true;
  }
  if (!part) credit_ -= chargeOf(flight.bytes);
  const std::size_t share = flight.bytes / static_cast<std::size_t>(connections_) + 1;
  const std::size_t most =
      connections_ == 1 ? kPartBytes : std::clamp(share, kLeastPartBytes, kPartBytes);
  const std::size_t payload = std::min(most, flight.bytes - flight.begun);
  out->header.payload = static_cast<std::uint32_t>(payload);
  out->data = flight.from + flight.begun;
  out->transfer = transfer;
  flight.begun += payload;
  // What has begun goes on before what has not.
  if (flight.begun == flight.bytes)
    leaving_.pushBack(transfer);
  else if (part)
    streaming_.pushFront(transfer);
  else
    streaming_.pushBack(transfer);
  return true;
}

void TcpPeer::written(Transfer* transfer, std::size_t payload) {
  Transfer::Flight& flight = transfer->flight;
  flight.moved += payload;
  if (flight.moved < flight.bytes) return;
  TransferList::remove(transfer);
  finish(transfer, TransferStatus::ok, flight.bytes);
}

void TcpPeer::tell(const FrameHeader& header) {
  if (gone_) return;
  const auto bytes = std::as_bytes(std::span(&header, 1));
  control_.insert(control_.end(), bytes.begin(), bytes.end());
}

std::uint32_t TcpPeer::takeOwed() {
  const auto now = static_cast<std::uint32_t>(
      std::min<std::size_t>(owed_, std::numeric_limits<std::uint32_t>::max()));
  owed_ -= now;
  held_ -= now;
  return now;
}

void TcpPeer::giveCreditBack() {
  if (owed_ > share_ / 2) tell({.kind = FrameKind::credit, .freed = takeOwed()});
}

}  // namespace moeccl

// Matches messages and receives by tag, cuts sends into frames, and charges and gives back credit.
#include "src/exec/tcp_peer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/text.h"

namespace moeccl {
namespace {

// Messages that a peer may have announced. An honest job has as many as it has sends in flight.
constexpr std::size_t kMostAnnounced = std::size_t{1} << 20;

void copyBytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

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

// ----------------------------------------------------------------------------------- receiving

TcpPeer::Verdict TcpPeer::take(const FrameHeader& header, bool main, Incoming* incoming) {
  if (header.kind == FrameKind::part) {
    const Verdict verdict = more(header, main, incoming);
    if (verdict != Verdict::taken) return verdict;
  }
  if (header.freed > credited_ - credit_) return Verdict::bad;
  credit_ += header.freed;
  switch (header.kind) {
    case FrameKind::part:
      return Verdict::taken;
    case FrameKind::message:
      return main ? begin(header, incoming) : Verdict::bad;
    case FrameKind::grant:
    case FrameKind::refuse: {
      if (header.payload != 0) return Verdict::bad;
      // It may have been withdrawn meanwhile.
      Transfer* const transfer = announcedSend(header.id);
      if (transfer == nullptr) return Verdict::taken;
      TransferList::remove(transfer);
      if (header.kind == FrameKind::refuse)
        finish(transfer, TransferStatus::cancelled, 0);
      else if (transfer->flight.bytes == 0)
        finish(transfer, TransferStatus::ok, 0);
      else
        streaming_.pushBack(transfer);
      return Verdict::taken;
    }
    case FrameKind::withdraw:
      return withdraw(header);
    case FrameKind::credit:
      return header.payload == 0 ? Verdict::taken : Verdict::bad;
    default:
      return Verdict::bad;
  }
}

Transfer* TcpPeer::announcedSend(std::uint32_t id) {
  for (Transfer* each = announced_.front(); each != nullptr; each = announced_.after(each))
    if (each->flight.id == id) return each;
  return nullptr;
}

TcpPeer::Verdict TcpPeer::begin(const FrameHeader& header, Incoming* incoming) {
  const bool announced = header.announced != 0;
  const bool empty = header.payload == 0 && header.bytes > 0;
  if (header.payload > header.bytes || header.payload > kPartBytes || header.id == 0 ||
      (announced ? header.payload > 0 : empty) || sourceOf(header.value) != rank_ ||
      header.bytes > std::numeric_limits<std::size_t>::max() / 4)
    return Verdict::bad;
  if (announced && announcedToUs_ == kMostAnnounced) return Verdict::bad;
  if (!announced && chargeOf(header.bytes) > share_ - held_) return Verdict::bad;

  InboundMessages begun(&common_.memory);
  begun.push_back({.id = header.id,
                   .tag = header.value,
                   .bytes = header.bytes,
                   .promised = header.payload,
                   .end = header.bytes,
                   .charge = announced ? 0 : chargeOf(header.bytes),
                   .announced = announced});
  const auto message = begun.begin();
  Transfer* const transfer = takePosted(header.value);
  if (transfer == nullptr && announced && common_.closing) {
    tell({.kind = FrameKind::refuse, .id = header.id});
    return Verdict::taken;
  }
  if (transfer == nullptr && !announced && header.bytes > 0)
    message->memory = common_.memory.take(header.bytes);
  message->transfer = transfer;
  InboundMessages& list = transfer != nullptr ? flowing_ : unexpected_;
  list.splice(list.end(), begun);
  held_ += message->charge;
  announcedToUs_ += announced ? 1 : 0;
  if (transfer != nullptr) transfer->flight.request = &*message;
  incoming->message = message;
  incoming->offset = 0;
  incoming->left = header.payload;
  if (transfer == nullptr) return Verdict::taken;
  release(*message);  // it needs no memory
  if (announced) grant(*message);
  if (message->end == 0) deliver(message);
  return Verdict::taken;
}

TcpPeer::Verdict TcpPeer::more(const FrameHeader& header, bool main, Incoming* incoming) {
  auto message = find(flowing_, header.id);
  if (message == flowing_.end()) {
    message = find(unexpected_, header.id);
    if (message == unexpected_.end()) return main ? Verdict::bad : Verdict::early;
  }
  const bool fits = header.payload > 0 && header.payload <= kPartBytes &&
                    header.value <= message->end && header.payload <= message->end - header.value &&
                    header.payload <= message->end - message->promised;
  if (!fits || message->announced) return Verdict::bad;
  if (header.value != message->arrived || message->arrived != message->promised)
    message->inOrder = false;
  message->promised += header.payload;
  *incoming = {message, header.value, header.payload};
  return Verdict::taken;
}

TcpPeer::Verdict TcpPeer::withdraw(const FrameHeader& header) {
  auto message = find(unexpected_, header.id);
  if (message != unexpected_.end())
    flowing_.splice(flowing_.end(), unexpected_, message);
  else
    message = find(flowing_, header.id);
  // One without a byte was over when it was granted, of which its sender may not have heard.
  if (message == flowing_.end() && header.payload == 0 && header.value == 0) return Verdict::taken;
  if (header.payload != 0 || message == flowing_.end() || header.value < message->promised ||
      header.value > message->end || (header.value == message->end && !message->announced))
    return Verdict::bad;
  // As if it had never come.
  message->end = header.value;
  settle(*message);
  release(*message);
  if (Transfer* const transfer = message->transfer) {
    message->transfer = nullptr;
    transfer->flight.request = nullptr;
    posted_.pushFront(transfer);
  }
  if (message->arrived == message->end) recycle(flowing_, message);
  return Verdict::taken;
}

std::span<std::byte> TcpPeer::placeOf(const Incoming& incoming) {
  const InboundMessage& message = *incoming.message;
  if (message.memory != nullptr) return {message.memory + incoming.offset, incoming.left};
  const Transfer* const transfer = message.transfer;
  if (transfer != nullptr && incoming.offset < transfer->flight.bytes)
    return {transfer->flight.to + incoming.offset,
            std::min(incoming.left, transfer->flight.bytes - incoming.offset)};
  return std::span(common_.sink).first(std::min(incoming.left, common_.sink.size()));
}

void TcpPeer::arrived(Incoming* incoming, std::size_t bytes) {
  InboundMessage& message = *incoming->message;
  incoming->offset += bytes;
  incoming->left -= bytes;
  message.arrived += bytes;
  if (message.arrived < message.end) return;
  incoming->left = 0;
  if (message.transfer != nullptr) return deliver(incoming->message);
  if (message.memory == nullptr) recycle(flowing_, incoming->message);
}

// Gives a message that is here to the receive that it belongs to.
void TcpPeer::deliver(InboundMessages::iterator at) {
  InboundMessage& message = *at;
  Transfer* const transfer = message.transfer;
  const std::size_t room = transfer->flight.bytes, bytes = message.bytes;
  const TransferStatus status = bytes <= room ? TransferStatus::ok : TransferStatus::truncated;
  if (message.memory != nullptr)
    copyBytes(transfer->flight.to, message.memory, std::min(bytes, room));
  recycle(flowing_, at);
  finish(transfer, status, bytes);
}

void TcpPeer::grant(InboundMessage& message) {
  settle(message);
  tell({.kind = FrameKind::grant, .id = message.id});
}

// The message waits for nobody's answer any more.
void TcpPeer::settle(InboundMessage& message) {
  if (std::exchange(message.announced, false)) --announcedToUs_;
}

// The message needs no memory any more, and what it was charged is free.
void TcpPeer::release(InboundMessage& message) {
  if (std::byte* const memory = std::exchange(message.memory, nullptr))
    common_.memory.give(memory, message.bytes);
  owed_ += message.charge;
  message.charge = 0;
}

void TcpPeer::recycle(InboundMessages& list, InboundMessages::iterator message) {
  release(*message);
  settle(*message);
  list.erase(message);
}

Transfer* TcpPeer::takePosted(Tag tag) {
  for (Transfer* each = posted_.front(); each != nullptr; each = posted_.after(each)) {
    if (each->flight.tag != tag) continue;
    TransferList::remove(each);
    return each;
  }
  return nullptr;
}

InboundMessages::iterator TcpPeer::find(InboundMessages& list, std::uint32_t id) {
  return std::ranges::find(list, id, &InboundMessage::id);
}

}  // namespace moeccl

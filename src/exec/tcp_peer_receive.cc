// Takes frames: finds the receive or makes room for each message, and gives credit back for what
// has been taken.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "src/exec/tcp_peer.h"

namespace moeccl {
namespace {

// Messages that a peer may have announced. An honest job has as many as it has sends in flight.
constexpr std::size_t kMostAnnounced = std::size_t{1} << 20;

}  // namespace

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

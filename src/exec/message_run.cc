// Posts receives before sends, and copies messages of this rank to itself. Receives that must wait
// are posted later, in order for each tag.
#include "src/exec/message_run.h"

#include <algorithm>
#include <cstring>

namespace moeccl {

void MessageRun::start(const Path& path, std::span<const Message> messages, Queue* queue) {
  path_ = path;
  begin(static_cast<int>(messages.size()));
  while (parts_.size() < messages.size()) parts_.push_back(std::make_unique<Part>());
  used_ = messages.size();
  for (std::size_t i = 0; i < used_; ++i) {
    Part& part = *parts_[i];
    part.done = &MessageRun::partDone;
    part.run = this;
    part.message = messages[i];
    part.active = part.over = false;
  }
  copyOwn();
  // Receives first, as what comes for them need not be kept then. A transfer that fails cancels the
  // others.
  for (std::size_t i = 0; i < used_ && !failed_; ++i) {
    Part& part = *parts_[i];
    if (part.message.isSend || isOwn(part)) continue;
    if (part.message.peer == kAnySource || queue->isBehind(*this, part.message.tag))
      queue->waiting_.push_back({this, &part});
    else
      receive(part, part.message.peer);
  }
  for (std::size_t i = 0; i < used_ && !failed_; ++i) {
    Part& part = *parts_[i];
    if (!part.message.isSend || isOwn(part)) continue;
    const Tag tag = makeMessageTag(path_.comm, path_.kind, part.message.tag,
                                   static_cast<std::uint32_t>(path_.transportRank[path_.rank]));
    part.active = true;
    ++inFlight_;
    path_.transport->send(path_.transportRank[part.message.peer], tag, part.message.data,
                          part.message.bytes, &part);
  }
}

void MessageRun::copyOwn() {
  for (std::size_t s = 0; s < used_; ++s) {
    Part& sent = *parts_[s];
    if (!sent.message.isSend || !isOwn(sent)) continue;
    for (std::size_t r = 0; r < used_; ++r) {
      Part& received = *parts_[r];
      if (received.message.isSend || !isOwn(received) || received.over ||
          received.message.tag != sent.message.tag)
        continue;
      if (sent.message.bytes > 0)
        std::memmove(received.message.data, sent.message.data, sent.message.bytes);
      sent.over = received.over = true;
      unfinished_ -= 2;
      break;
    }
  }
}

void MessageRun::receive(Part& part, int peer) {
  const int from = path_.transportRank[peer];
  part.message.peer = peer;
  part.active = true;
  ++inFlight_;
  path_.transport->recv(
      from,
      makeMessageTag(path_.comm, path_.kind, part.message.tag, static_cast<std::uint32_t>(from)),
      part.message.data, part.message.bytes, &part);
}

void MessageRun::partDone(Transfer* self, TransferStatus status, std::size_t bytes) {
  auto* part = static_cast<Part*>(self);
  MessageRun& run = *part->run;
  part->active = false;
  part->over = true;
  --run.inFlight_;
  if (run.failed_) return;
  const Message& message = part->message;
  if (status != TransferStatus::ok || (!message.isSend && bytes != message.bytes))
    return run.fail(
        failureOf(*run.path_.transport, status, -1, message.peer, message.bytes, bytes));
  if (message.source != nullptr) *message.source = message.peer;
  --run.unfinished_;
}

void MessageRun::cancel() {
  failed_ = true;
  for (std::size_t i = 0; i < used_; ++i)
    if (parts_[i]->active) path_.transport->cancel(parts_[i].get());
}

std::vector<int> MessageRun::peersOf(bool sends) const {
  std::vector<int> peers;
  for (std::size_t i = 0; i < used_; ++i) {
    const Part& part = *parts_[i];
    if (part.message.isSend == sends && !part.over && part.message.peer != kAnySource)
      peers.push_back(part.message.peer);
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

bool MessageRun::waitsForAnybody() const {
  return std::any_of(
      parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(used_),
      [](const auto& part) { return !part->message.isSend && part->message.peer == kAnySource; });
}

bool MessageRun::Queue::isBehind(const MessageRun& run, std::uint32_t tag) const {
  return std::ranges::any_of(waiting_, [&](const Waiting& each) {
    return each.run->kind() == run.kind() && each.part->message.tag == tag;
  });
}

bool MessageRun::Queue::advance() {
  bool anything = false;
  for (std::size_t i = 0; i < waiting_.size();) {
    MessageRun* const run = waiting_[i].run;
    Part* const part = waiting_[i].part;
    const Message& message = part->message;
    int peer = message.peer;
    if (run->failed_) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    const bool first = std::none_of(
        waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(i), [&](const Waiting& w) {
          return w.run->kind() == run->kind() && w.part->message.tag == message.tag;
        });
    bool ready = first;
    if (first && peer == kAnySource) {
      Tag found = 0;
      const Path& path = run->path_;
      ready = path.transport->unexpected(makeMessageTag(path.comm, path.kind, message.tag, 0),
                                         ~tagBits(kSourceBits), &found);
      if (ready) {
        const auto at = std::ranges::find(path.transportRank, sourceOf(found));
        ready = at != path.transportRank.end();
        peer = static_cast<int>(at - path.transportRank.begin());
      }
    }
    if (!ready) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    anything = true;
    run->receive(*part, peer);
  }
  return anything;
}

void MessageRun::Queue::forget(const MessageRun& run) {
  std::erase_if(waiting_, [&](const Waiting& each) { return each.run == &run; });
}

}  // namespace moeccl

// Counts bytes on both sides, so that each knows which messages to drop and which to send again.
#include "src/watch/control_stream.h"

#include <cstring>
#include <utility>

#include "src/watch/persist.h"

namespace moeccl {
namespace {

constexpr std::size_t kReportRead = ControlStream::kUnread / 4;

std::span<const std::byte> bytesOf(const ControlStream::Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

void append(ControlStream::Bytes& to, std::span<const std::byte> bytes) {
  persist([&] { to.reserve(to.size() + bytes.size()); });
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

void ControlStream::send(const Header& header, std::span<const std::byte> body) {
  Bytes message;
  append(message, bytesOf(header));
  append(message, body);
  persist([&] { waiting_.emplace_back(); });
  waiting_.back() = std::move(message);
  fill(false);
}

void ControlStream::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ < out_.size()) return;
  out_.clear();
  sent_ = 0;
}

// Moves messages to out_: all, or those that the peer has room for. The peer tells no less than
// kReportRead at once, so below that the next message goes anyway.
void ControlStream::fill(bool all) {
  if (renewing_) return;
  while (!waiting_.empty()) {
    Bytes& next = waiting_.front();
    if (!all && unread_ >= kReportRead && unread_ + next.size() > kUnread) return;
    append(out_, next);
    persist([&] { kept_.emplace_back(); });
    unread_ += next.size();
    kept_.back() = std::move(next);
    waiting_.pop_front();
  }
}

void ControlStream::put(std::uint32_t kind, std::uint64_t count) {
  append(out_, bytesOf({kind, 0, count, 0}));
}

bool ControlStream::received(std::span<const std::byte> bytes, const Take& take) {
  append(in_, bytes);
  std::size_t at = 0;
  while (in_.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in_.data() + at, sizeof header);
    if (header.bytes > longest_) return false;
    const bool own = header.kind == kRead || header.kind == kResume;
    if (own ? !receivedOwn(header) : renewing_) return false;
    const std::size_t size = sizeof header + header.bytes;
    if (in_.size() - at < size) break;
    if (!own) {
      read_ += size;
      if (!take(header, std::span(in_).subspan(at + sizeof header, header.bytes))) return false;
    }
    at += size;
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at));
  if (read_ - reported_ >= kReportRead) put(kRead, read_ - std::exchange(reported_, read_));
  fill(false);
  return true;
}

bool ControlStream::receivedOwn(const Header& header) {
  if (header.bytes != 0) return false;
  if (header.kind == kRead) return !renewing_ && acknowledge(header.sequence);
  if (!std::exchange(renewing_, false) || header.sequence < acknowledged_ ||
      !acknowledge(header.sequence - acknowledged_))
    return false;
  for (const Bytes& message : kept_) append(out_, message);
  return true;
}

// Drops messages that the peer has read: whole ones, from the first on. False: `bytes` are no such
// messages.
bool ControlStream::acknowledge(std::uint64_t bytes) {
  for (; bytes > 0; kept_.pop_front()) {
    if (kept_.empty() || kept_.front().size() > bytes) return false;
    bytes -= kept_.front().size();
    unread_ -= kept_.front().size();
    acknowledged_ += kept_.front().size();
  }
  return true;
}

void ControlStream::broke() {
  in_.clear();
  out_.clear();
  sent_ = 0;
  renewing_ = true;
}

void ControlStream::renew() {
  broke();
  reported_ = read_;
  put(kResume, read_);
}

void ControlStream::end() {
  broke();
  waiting_.clear();
  kept_.clear();
  unread_ = 0;
}

}  // namespace moeccl

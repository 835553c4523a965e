// Keeps the digests of the last calls, and says when other ranks are asked: after 300 ms, then
// after twice as long each time.
#include "src/comm/gpu_calls.h"

#include <utility>

#include "src/base/hash.h"

namespace moeccl {
namespace {

// How long a call stands still before others are asked. Ranks that are late are no mistake.
constexpr std::chrono::milliseconds kStill{300};

}  // namespace

void GpuCalls::add(CallSignature signature, Clock::time_point now) {
  if (stopped_) return;
  digest_ = mixed(digest_, signature.digest());
  records_[next_++ % kKept] = {std::move(signature), digest_};
  pause_ = kStill;
  ask_ = now + pause_;
}

GpuCalls::Question GpuCalls::ask(Clock::time_point now) {
  pause_ *= 2;
  ask_ = now + pause_;
  const Record& last = records_[(next_ - 1) % kKept];
  return {next_ - 1, last.digest, last.signature.text()};
}

std::optional<std::string> GpuCalls::otherThan(std::uint32_t call, std::uint64_t digest) const {
  if (call >= next_ || next_ - call > kKept) return std::nullopt;
  const Record& own = records_[call % kKept];
  if (own.digest == digest) return std::nullopt;
  return own.signature.text();
}

}  // namespace moeccl

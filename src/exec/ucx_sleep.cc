// Sleeps until UCX, a process or another thread has news.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "src/exec/ucx_transport.h"

namespace moeccl {

bool UcxTransport::prepareToSleep(int* milliseconds) {
  if (closed_) return true;
  if (!losses_.empty() || !refused_.empty() || !arrived_.empty() || !owing_.empty()) return false;
  if (!flushing_ && !(leaving_.empty() && flushed_.empty())) return false;
  if (!cancelling_.empty()) *milliseconds = std::min(*milliseconds, 1);
  rings_.awoke(rung_, moved_);
  rung_ = moved_ = false;
  const bool deaf = rings_.deaf();
  sleepOn_[0] = deaf ? -1 : workerEvents_;
  if (deaf) {
    *milliseconds = std::min(*milliseconds, VainRings::kLookMs);
    return true;
  }
  // With UCP_FEATURE_WAKEUP, UCX (1.13) selects only transports that can signal, shared memory
  // included, so the sleep needs no other bound.
  const ucs_status_t status = ucp_worker_arm(worker_.get());
  rung_ = status == UCS_ERR_BUSY;
  if (rung_) return false;
  if (status != UCS_OK) *milliseconds = std::min(*milliseconds, 1);
  return true;
}

void UcxTransport::wait(int milliseconds) {
  if (closed_ || !prepareToSleep(&milliseconds)) return;
  // No epoll of these: the kernel would tell it of each packet that arrives, also while nobody
  // sleeps.
  std::array<pollfd, std::tuple_size_v<decltype(sleepOn_)>> events;
  std::ranges::transform(sleepOn_, events.begin(), [](int fd) { return pollfd{fd, POLLIN, 0}; });
  if (poll(events.data(), events.size(), milliseconds) > 0) awake(events);
}

void UcxTransport::awake(std::span<const pollfd> polled) {
  if (closed_) return;
  rung_ = polled[0].revents != 0;
  lookAfterProcesses();
  std::uint64_t wakes;
  // It can only fail when there was none.
  if (read(woken_.get(), &wakes, sizeof wakes) < 0) return;
}

void UcxTransport::wake() {
  const std::uint64_t one = 1;
  // It can only fail when it is full, and then it wakes too.
  if (write(woken_.get(), &one, sizeof one) < 0) return;
}

}  // namespace moeccl

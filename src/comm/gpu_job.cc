// The thread that hears of losses and revocations, and looks for calls that stand still every 100
// ms.
#include "src/comm/gpu_job.h"

#include <pthread.h>

#include <chrono>
#include <system_error>
#include <utility>
#include <variant>

#include "src/base/error.h"
#include "src/bootstrap/signals.h"
#include "src/comm/failure.h"
#include "src/comm/gpu_communicator.h"

namespace moeccl {
namespace {

// How often it is seen whether calls stand still.
constexpr std::chrono::milliseconds kLooking{100};
// The latest revocations kept for communicators to come.
constexpr std::size_t kEarlyNotices = 16;

}  // namespace

GpuJob::GpuJob(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {
  watch_->onNews([this] { wake(false); });
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { live(); });
  } catch (const std::system_error& error) {
    throw Error(
        moecclSystemError,
        std::string("cannot start a thread that aborts what the dead leave: ") + error.what());
  }
}

GpuJob::~GpuJob() {
  wake(true);
  thread_.join();
  watch_->leave();
}

void GpuJob::wake(bool stop) {
  {
    const std::lock_guard lock(wakeMutex_);
    (stop ? stop_ : news_) = true;
  }
  woken_.notify_one();
}

void GpuJob::live() {
  pthread_setname_np(pthread_self(), "moeccl-gpus");
  for (bool heard = true;;) {
    {
      const std::lock_guard lock(mutex_);
      for (Watch::News news; watch_->next(&news);) {
        if (const auto* notice = std::get_if<Notice>(&news))
          deliver(*notice);
        else
          for (GpuCommunicator* each : communicators_) each->lost(std::get<Loss>(news));
      }
      for (GpuCommunicator* communicator : communicators_) communicator->followWhole();
      // All have been told by now, so that calls return.
      for (std::size_t i = 0; heard && i < communicators_.size(); ++i)
        communicators_[i]->endWhatIsStuck();
      for (GpuCommunicator* communicator : communicators_) communicator->compareCalls();
    }
    std::unique_lock lock(wakeMutex_);
    woken_.wait_for(lock, kLooking, [this] { return news_ || stop_; });
    if (stop_) return;
    heard = std::exchange(news_, false);
  }
}

void GpuJob::deliver(const Notice& notice) {
  bool heard = false;
  for (GpuCommunicator* communicator : communicators_) heard |= communicator->hear(notice);
  if (heard || notice.revokes == 0) return;
  if (early_.size() == kEarlyNotices) early_.pop_front();
  early_.push_back(notice);
}

void GpuJob::requireAlive(std::span<const int> members) const {
  for (const Loss& loss : watch_->losses())
    if (const std::optional<int> rank = rankAmong(members, loss.rank); rank && !loss.left)
      throw Error(moecclRemoteError, deathText(*rank, *watch_, loss));
}

void GpuJob::add(GpuCommunicator& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(&communicator);
  for (const Loss& loss : watch_->losses()) communicator.lost(loss);
  std::erase_if(early_, [&](const Notice& notice) { return communicator.hear(notice); });
  communicator.endWhatIsStuck();
}

void GpuJob::remove(GpuCommunicator& communicator) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(communicators_, &communicator) == 0) return;
    for (GpuCommunicator* other : communicators_) other->forget(communicator);
    if (!communicators_.empty()) return;
  }
  watch_->leave();
}

}  // namespace moeccl

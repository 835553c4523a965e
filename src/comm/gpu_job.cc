#include "src/comm/gpu_job.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <variant>

#include "src/bootstrap/signals.h"
#include "src/comm/gpu_communicator.h"
#include "src/error.h"
#include "src/text.h"

namespace moeccl {

GpuJob::GpuJob(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {
  watch_->onNews([this] {
    ++woken_;
    woken_.notify_one();
  });
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
  stop_ = true;
  ++woken_;
  woken_.notify_one();
  thread_.join();
  watch_->leave();
}

void GpuJob::live() {
  pthread_setname_np(pthread_self(), "moeccl-gpus");
  // `seen` is read before stop_: a stop that comes in between changes woken_, and so ends the wait.
  for (unsigned seen = woken_; !stop_; woken_.wait(seen), seen = woken_) {
    const std::lock_guard lock(mutex_);
    bool dead = false;
    for (Watch::News news; watch_->next(&news);)
      if (const auto* loss = std::get_if<Loss>(&news)) {
        dead |= !loss->left;
        for (GpuCommunicator* communicator : communicators_) communicator->lost(*loss);
      }
    // All have been told by now, so that calls return.
    for (std::size_t i = 0; dead && i < communicators_.size(); ++i)
      communicators_[i]->endWhatTheDeadLeave();
  }
}

std::string GpuJob::textOf(const Loss& loss, int rank) const {
  return stringf("rank %d on %s is dead: %s", rank, watch_->hostOf(loss.rank).c_str(),
                 loss.why.c_str());
}

void GpuJob::requireAlive(std::span<const int> members) const {
  for (const Loss& loss : watch_->losses())
    if (const auto at = std::ranges::find(members, loss.rank); at != members.end() && !loss.left)
      throw Error(moecclRemoteError, textOf(loss, static_cast<int>(at - members.begin())));
}

void GpuJob::add(GpuCommunicator& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(&communicator);
  for (const Loss& loss : watch_->losses()) communicator.lost(loss);
  communicator.endWhatTheDeadLeave();
}

void GpuJob::remove(GpuCommunicator& communicator) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(communicators_, &communicator) == 0 || !communicators_.empty()) return;
  }
  watch_->leave();
}

}  // namespace moeccl

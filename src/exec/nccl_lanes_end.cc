// How lanes end: by destroy(), by abort(), or by interrupt() while another thread is inside NCCL.
#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "src/bootstrap/signals.h"
#include "src/exec/nccl_lanes.h"

namespace moeccl {
namespace {

// How long calls that wait no more may take to return; those that block never do.
constexpr std::chrono::milliseconds kReturning{20};

}  // namespace

NcclLanes::Inside::Inside(const NcclLanes& lanes) : lanes_(lanes) {
  const std::lock_guard lock(lanes.commsMutex_);
  lanes.requireWhole();
  ++lanes.inside_;
}

NcclLanes::Inside::Inside(const NcclLanes& lanes, const std::lock_guard<std::mutex>&)
    : lanes_(lanes) {
  ++lanes.inside_;
}

NcclLanes::Inside::~Inside() {
  const std::lock_guard lock(lanes_.commsMutex_);
  if (--lanes_.inside_ == 0) lanes_.left_.notify_all();
}

void NcclLanes::requireWhole() const {
  if (interrupted_) throw Error(moecclRemoteError, "NCCL's communicators have been aborted");
}

void NcclLanes::useDevice() noexcept {
  try {
    gpu_->setDevice(device_);
  } catch (...) {  // CUDA has gone before us
  }
}

void NcclLanes::destroy() noexcept {
  deregister(nullptr);
  while (!comms_.empty()) {
    gpu_->destroy(comms_.back());
    comms_.pop_back();
  }
  if (root_ != nullptr) gpu_->destroy(std::exchange(root_, nullptr));
}

void NcclLanes::abortAll() noexcept {
  if (interrupter_.joinable()) interrupter_.join();
  if (!comms_.empty()) gpu_->abort(comms_);
  comms_.clear();
  registrations_.clear();
  // Not in their group, as they block; and none of them waits for it, as it has no work.
  if (const Gpu::Comm root = std::exchange(root_, nullptr); root != nullptr)
    gpu_->abort({&root, 1});
}

void NcclLanes::interrupt() noexcept {
  const std::lock_guard lock(commsMutex_);
  if (std::exchange(interrupted_, true)) return;
  try {
    const SignalsBlocked blocked;
    interrupter_ = std::thread([this] { abortWhenLeft(); });
  } catch (...) {  // no thread to be had: abortAll() ends them
  }
}

void NcclLanes::abortWhenLeft() noexcept {
  useDevice();
  std::unique_lock lock(commsMutex_);
  const auto left = [this] { return inside_ == 0; };
  if (!left_.wait_for(lock, kReturning, left)) {
    const std::vector<Gpu::Comm> comms = comms_;
    lock.unlock();
    gpu_->revoke(comms);
    lock.lock();
    left_.wait(lock, left);
  }
  const std::vector<Gpu::Comm> comms = std::exchange(comms_, {});
  lock.unlock();
  if (!comms.empty()) gpu_->abort(comms);
}

void NcclLanes::abort(std::unique_ptr<NcclLanes> lanes, std::chrono::milliseconds limit) noexcept {
  const bool waits = lanes->graphs() > 0;
  NcclLanes* const left = lanes.release();
  try {
    std::promise<void> ended;
    const std::future<void> end = ended.get_future();
    const SignalsBlocked blocked;
    std::thread([left, ended = std::move(ended)]() mutable {
      left->useDevice();
      { const std::unique_ptr<NcclLanes> ends(left); }
      ended.set_value();
    }).detach();
    if (!waits) end.wait_for(limit);
  } catch (...) {  // no thread to be had: better lost than waited for
  }
}

}  // namespace moeccl

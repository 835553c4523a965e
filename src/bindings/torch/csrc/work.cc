// Waits for events, on hosts or by CUDA's streams, and tells of errors.
#include "work.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "signals.h"

namespace moeccl::torch {
namespace {

// What a callback of moeccl's is given.
struct Waiting {
  c10::intrusive_ptr<MoecclWork> work;
  std::shared_ptr<Communicator> communicator;
  moecclStream_t stream = nullptr;  // to give back
  moecclEvent_t event = nullptr;
};

// How often a thread that waits runs the handlers of signals that came meanwhile.
constexpr std::chrono::milliseconds kSignals{100};

}  // namespace

c10::Device MoecclWork::Needs::cudaDevice() const {
  for (const auto* all : {&outputs, &tensors})
    for (const at::Tensor& tensor : *all)
      if (tensor.is_cuda()) return tensor.device();
  TORCH_INTERNAL_ASSERT(false, "a call on CUDA has no tensor there");
}

MoecclWork::MoecclWork(int rank, c10d::OpType type, std::string where, uint64_t sequence,
                       Needs needs, std::vector<c10::Device> devices)
    : Work(rank, type),
      where_(std::move(where)),
      sequence_(sequence),
      needs_(std::move(needs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()), devices)) {
  if (!devices.empty()) reached_.emplace(devices[0].type());
}

void MoecclWork::finishNow() { complete(moecclSuccess); }

void MoecclWork::finishWith(const std::shared_ptr<Communicator>& communicator,
                            moecclStream_t stream, bool mayReuse) {
  communicator_ = communicator;
  const moecclEvent_t event = communicator->takeEvent();
  check(moecclEventRecord(event, stream), nullptr, where_);
  auto* const waiting =
      new Waiting{c10::intrusive_ptr<MoecclWork>::unsafe_reclaim_from_nonowning(this), communicator,
                  mayReuse ? stream : nullptr, event};
  check(moecclEventSetCallback(event, &MoecclWork::completed, waiting), nullptr, where_);
}

void MoecclWork::completed(moecclResult_t result, void* context) {
  const std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(context));
  // Leaves the error's text with this thread.
  if (result != moecclSuccess) moecclEventQuery(waiting->event);
  if (waiting->stream != nullptr && result == moecclSuccess)
    waiting->communicator->giveBack(waiting->stream);
  waiting->work->complete(result);
  waiting->communicator->giveBack(waiting->event);
}

void MoecclWork::complete(moecclResult_t result) {
  std::exception_ptr failure;
  try {
    check(result, nullptr, where_);
    for (const auto& step : needs_.after) step();
    if (reached_) {
      const c10::impl::VirtualGuardImpl guard(reached_->device_type());
      reached_->record(guard.getStream(needs_.cudaDevice()));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  needs_.after.clear();
  needs_.tensors.clear();
  if (failure)
    future_->setError(failure);
  else
    future_->markCompleted(c10::IValue(needs_.outputs));
  finish(failure);
}

bool MoecclWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  return !reached_ || reached_->query();
}

bool MoecclWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const bool bounded = timeout != kNoTimeout;
  const auto end = Clock::now() + (bounded ? timeout : std::chrono::milliseconds(0));
  Wait together(waits, of, c10d::opTypeToString(retrieveOpType()), number);
  for (std::unique_lock lock(mutex_); !completed_ && (!bounded || Clock::now() < end);) {
    const auto next = Clock::now() + kSignals;
    if (cv_.wait_until(lock, bounded ? std::min(end, next) : next, [this] { return completed_; }))
      break;
    lock.unlock();
    runSignalHandlers();
    if (const auto text = together.look())
      if (const auto communicator = communicator_.lock(); communicator && !communicator->aborted())
        moecclCommRevoke(communicator->comm(), text->c_str());
    lock.lock();
  }
  const bool over = Work::wait(bounded ? std::chrono::milliseconds(1) : timeout);
  synchronize();
  return over;
}

void MoecclWork::synchronize() {
  if (!reached_ || !reached_->was_marked_for_recording()) return;
  const c10::impl::VirtualGuardImpl guard(reached_->device_type());
  reached_->block(guard.getStream(c10::Device(reached_->device_type(), reached_->device_index())));
}

int MoecclWork::sourceRank() const {
  TORCH_CHECK(needs_.source != nullptr, "sourceRank() is of receives from any rank alone");
  return *needs_.source;
}

}  // namespace moeccl::torch

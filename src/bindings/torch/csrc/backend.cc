// The calls of c10d::Backend, each of which becomes a launch on a communicator.
#include "backend.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "signals.h"

namespace moeccl::torch {
namespace {

// The communicator of the default group, from which others are made.
std::mutex worldMutex;
std::weak_ptr<Communicator> world;

bool isCollective(c10d::OpType type) {
  return type != c10d::OpType::SEND && type != c10d::OpType::RECV &&
         type != c10d::OpType::RECVANYSOURCE;
}

// What a rank waits for in such a collective.
Wait::Of waitsFor(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::_REDUCE_SCATTER_BASE:
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
    case c10d::OpType::BARRIER:
      return Wait::Of::group;
    default:
      return Wait::Of::some;
  }
}

}  // namespace

MoecclBackend::MoecclBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             std::chrono::milliseconds timeout,
                             const std::vector<int64_t>& globalRanks, std::string group)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("moeccl", timeout)),
      group_(std::move(group)),
      globalRanks_(globalRanks),
      timeout_(timeout) {
  options_->global_ranks_in_group.assign(globalRanks.begin(), globalRanks.end());
  std::shared_ptr<Communicator> parent;
  {
    const std::lock_guard lock(worldMutex);
    parent = world.lock();
  }
  const bool isPart = !globalRanks.empty() && parent != nullptr && !parent->aborted();
  host_ = isPart ? parent->subset({globalRanks.begin(), globalRanks.end()}, timeout)
                 : Communicator::create(*store, rank, size, timeout);
  // A group that is made anew may get the same store.
  waits_ = std::make_shared<Waits>(c10::make_intrusive<c10d::PrefixStore>(host_->name(), store),
                                   rank, size);
  if (!globalRanks.empty()) return;
  const std::lock_guard lock(worldMutex);
  world = host_;
}

MoecclBackend::~MoecclBackend() { shutdown(); }

void MoecclBackend::abort() {
  if (cuda_) cuda_->abort();
  host_->abort();
}

void MoecclBackend::shutdown() {
  if (cuda_) cuda_->close();
  host_->close();
}

std::shared_ptr<Communicator> MoecclBackend::subset(const std::vector<int>& ranks) const {
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  return host_->subset(ranks, timeout_);
}

std::string MoecclBackend::where() const {
  std::string text = "rank " + std::to_string(getRank()) + " of " + std::to_string(getSize());
  if (globalRanks_.empty()) return text;
  text += ", group " + group_ + " of the global ranks";
  for (const int64_t rank : globalRanks_) text += ' ' + std::to_string(rank);
  return text;
}

// Ranks that all refuse the same call go on, and nobody waits in it. What has broken the
// communicator the others hear by it.
void MoecclBackend::refuse(const std::exception& error) {
  const int64_t number = collectives_++;
  moecclResult_t broken = moecclSuccess;
  if (host_->aborted() || moecclCommGetAsyncError(host_->comm(), &broken) != moecclSuccess ||
      broken != moecclSuccess)
    throw;
  const auto* const detailed = dynamic_cast<const c10::Error*>(&error);
  try {
    waits_->refuse(number, where() + " takes no part in the group's collective " +
                               std::to_string(number) + ": " +
                               (detailed ? detailed->what_without_backtrace() : error.what()));
  } catch (...) {  // no store: the others wait for the timeout
  }
  throw;
}

Communicator& MoecclBackend::communicatorFor(const Needs& needs,
                                             std::shared_ptr<Communicator>* holder,
                                             moecclStream_t* stream) {
  const at::Tensor* any = needs.outputs.empty() ? nullptr : &needs.outputs[0];
  if (any == nullptr && !needs.tensors.empty()) any = &needs.tensors[0];
  const bool onCuda = any != nullptr && any->is_cuda();
  TORCH_CHECK(any == nullptr || any->is_cpu() || onCuda, "moeccl serves tensors on CPUs and CUDA");
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  if (!onCuda) {
    *holder = host_;
    return *host_;
  }
  const c10::DeviceGuard guard(any->device());
  if (!cuda_) cuda_ = host_->onCuda(getRank(), getSize(), timeout_);
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  *stream = device.getStream(any->device()).native_handle();
  *holder = cuda_;
  return *cuda_;
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::newWork(c10d::OpType type, Needs needs, bool onCuda) {
  std::vector<c10::Device> devices;
  if (onCuda) devices.push_back(needs.cudaDevice());
  return c10::make_intrusive<MoecclWork>(getRank(), type, where(), sequence_, std::move(needs),
                                         std::move(devices));
}

// Alone: collectives that the caller does not wait for run on one stream, others in the caller's
// own thread, or on CUDA's current stream. In a coalesced group all are noted, and run at its end.
c10::intrusive_ptr<c10d::Work> MoecclBackend::run(c10d::OpType type,
                                                  std::chrono::milliseconds timeout, bool async,
                                                  Needs needs, const Launch& launch) {
  ++sequence_;
  std::shared_ptr<Communicator> communicator;
  moecclStream_t stream = nullptr;
  communicatorFor(needs, &communicator, &stream);
  const bool onCuda = communicator == cuda_;
  std::optional<c10::StreamGuard> beside;
  if (onCuda && (async || coalesces())) {
    beside.emplace(side_.behindCurrent(needs.cudaDevice()));
    stream = beside->current_stream().native_handle();
    SideStream::keep(needs, beside->current_stream());
  }
  communicator->setTimeout(timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
  if (coalesces()) {
    coalescing_->note(std::move(needs), launch, communicator, stream, onCuda);
    auto noted = newWork(type, {}, false);
    static_cast<MoecclWork*>(noted.get())->finishNow();
    if (isCollective(type)) ++collectives_;
    return noted;
  }
  if (async && !onCuda) stream = communicator->stream();
  const moecclComm_t comm = communicator->comm();
  const std::shared_ptr<Waits> waits = isCollective(type) && !onCuda ? waits_ : nullptr;
  Wait wait(waits, waitsFor(type), c10d::opTypeToString(type), collectives_);
  check(interruptible(
            comm, [&] { return launch(comm, stream); }, &wait),
        comm, where());
  auto work = newWork(type, std::move(needs), onCuda);
  auto* const started = static_cast<MoecclWork*>(work.get());
  if (onCuda || !async) {
    started->finishNow();
  } else {
    started->waits = waits;
    started->of = waitsFor(type);
    started->number = collectives_;
    started->finishWith(communicator, stream, false);
  }
  if (isCollective(type)) ++collectives_;
  return work;
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::message(c10d::OpType type, Needs needs,
                                                      const Launch& launch) {
  std::shared_ptr<Communicator> communicator;
  moecclStream_t stream = nullptr;
  communicatorFor(needs, &communicator, &stream);
  if (coalesces() || communicator == cuda_)
    return run(type, c10d::kUnsetTimeout, true, std::move(needs), launch);
  communicator->setTimeout(timeout_);
  stream = communicator->takeStream(type != c10d::OpType::SEND);
  check(launch(communicator->comm(), stream), communicator->comm(), where());
  auto work = newWork(type, std::move(needs), false);
  static_cast<MoecclWork*>(work.get())->finishWith(communicator, stream, true);
  return work;
}

bool MoecclBackend::coalesces() {
  if (coalescing_ && coalescing_->abandoned()) coalescing_.reset();
  return coalescing_.has_value();
}

void MoecclBackend::startCoalescing() {
  TORCH_CHECK(!coalesces(), "coalesced calls do not nest");
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  coalescing_.emplace();
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "there are no coalesced calls to end");
  Coalescing all = std::move(*coalescing_);
  coalescing_.reset();
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  const moecclStream_t stream = host_->takeStream(false);
  std::exception_ptr refused;
  try {
    all.launch(stream, where());
  } catch (...) {
    refused = std::current_exception();  // the others run, and need what they have
  }
  if (all.onCuda()) host_->giveBack(stream);
  Needs needs = all.takeNeeds();
  std::optional<c10::StreamGuard> beside;
  if (all.onCuda()) beside.emplace(side_.behindCurrent(needs.cudaDevice()));
  auto work = newWork(c10d::OpType::COALESCED, std::move(needs), all.onCuda());
  auto* const started = static_cast<MoecclWork*>(work.get());
  if (all.onCuda())
    started->finishNow();
  else
    started->finishWith(host_, stream, true);
  if (refused) std::rethrow_exception(refused);
  return work;
}

}  // namespace moeccl::torch

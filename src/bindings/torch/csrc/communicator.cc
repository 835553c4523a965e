// Makes communicators by a store, and lends streams and events of theirs.
#include "communicator.h"

#include <c10/util/hash.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "signals.h"

namespace moeccl::torch {
namespace {

// A receive without a message is given up after so long where the group ends. Sends and collectives
// end by themselves: each has its timeout.
constexpr std::chrono::seconds kUnmatched{10};

moecclConfig_t configWith(std::chrono::milliseconds timeout) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  // Whoever has started an exchange computes, and calls nothing of ours meanwhile.
  config.progressThread = 1;
  config.timeoutMs = timeout.count();
  config.idle = &Interruptible::idle;
  return config;
}

struct Gather {
  moecclComm_t comm;
};

int allgather(const void* send, void* recv, size_t bytes, void* context) {
  const moecclComm_t comm = static_cast<Gather*>(context)->comm;
  return moecclAllGather(send, recv, bytes, moecclUint8, comm, nullptr) == moecclSuccess ? 0 : 1;
}

// A group that is made anew may get the same store, where an id that was used would mislead.
void forget(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {
    // Not all stores can.
  }
}

}  // namespace

void check(moecclResult_t result, moecclComm_t comm, const std::string& where) {
  if (result == moecclSuccess || result == moecclInProgress) return;
  std::string text = comm == nullptr ? "" : moecclGetLastError(comm);
  if (text.empty()) text = moecclGetLastError(nullptr);
  if (text.empty()) text = moecclGetErrorString(result);
  // Trainers look for the word.
  C10_THROW_ERROR(DistBackendError,
                  "[" + where + "] " + (result == moecclTimeout ? "timeout of " : "") + text);
}

std::shared_ptr<Communicator> Communicator::create(c10d::Store& store, int rank, int size,
                                                   std::chrono::milliseconds timeout) {
  const std::string where = "rank " + std::to_string(rank) + " of " + std::to_string(size);
  const std::string key = "moeccl_unique_id";
  moecclUniqueId id;
  if (rank == 0) {
    check(moecclGetUniqueId(&id), nullptr, where);
    store.set(key, std::vector<uint8_t>(id.internal, id.internal + sizeof id.internal));
  } else {
    // A store waits inside its lock; a clone has a connection of its own.
    const auto own = store.clone();
    own->wait({key}, timeout);
    const std::vector<uint8_t> bytes = own->get(key);
    TORCH_CHECK(bytes.size() == sizeof id.internal, "the store holds no unique id of moeccl");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  const moecclConfig_t config = configWith(timeout);
  moecclComm_t comm = nullptr;
  const moecclResult_t result = moecclCommInitRankConfig(&comm, size, id, rank, &config);
  if (rank == 0) forget(store, key);
  check(result, nullptr, where);
  const std::string name = c10::sha1(std::string(id.internal, sizeof id.internal)).str();
  std::shared_ptr<Communicator> made(new Communicator(comm, name));
  // Nobody makes the next group before the id is gone.
  check(moecclBarrier(comm, nullptr), comm, where);
  return made;
}

std::shared_ptr<Communicator> Communicator::subset(const std::vector<int>& ranks,
                                                   std::chrono::milliseconds timeout) {
  const moecclConfig_t config = configWith(timeout);
  moecclComm_t comm = nullptr;
  const moecclResult_t result = interruptible(comm_, [&] {
    return moecclCommCreateSubset(comm_, ranks.data(), static_cast<int>(ranks.size()), &comm,
                                  &config);
  });
  // Other threads may be making groups: this one's own text.
  check(result, nullptr, "making a group of " + std::to_string(ranks.size()) + " ranks");
  return std::shared_ptr<Communicator>(new Communicator(comm, name_));
}

std::shared_ptr<Communicator> Communicator::onCuda(int rank, int size,
                                                   std::chrono::milliseconds timeout) {
  moecclConfig_t config = configWith(timeout);
  config.memory = moecclMemoryCuda;
  Gather gather{comm_};
  const moecclOob_t oob = {allgather, &gather};
  moecclComm_t comm = nullptr;
  check(moecclCommInitOob(&comm, size, rank, &oob, &config), nullptr,
        "rank " + std::to_string(rank) + " of " + std::to_string(size) + ", on CUDA");
  return std::shared_ptr<Communicator>(new Communicator(comm, name_));
}

Communicator::~Communicator() { close(); }

void Communicator::close() {
  if (comm_ == nullptr) return;
  if (!awaitWork()) return abort();
  destroyStreams();
  destroyEvents();
  if (moecclCommRelease(comm_) != moecclSuccess) moecclCommAbort(comm_);
  comm_ = nullptr;
}

bool Communicator::awaitWork() {
  if (stream_ != nullptr) moecclStreamSynchronize(stream_);
  const auto end = std::chrono::steady_clock::now() + kUnmatched;
  for (const Lent& each : streams_) {
    if (!each.receives) moecclStreamSynchronize(each.stream);
    while (moecclStreamQuery(each.stream) == moecclInProgress) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

void Communicator::setTimeout(std::chrono::milliseconds timeout) {
  moecclCommSetTimeout(comm_, timeout.count() > 0 ? timeout.count() : 0);
}

moecclStream_t Communicator::stream() {
  if (stream_ == nullptr) check(moecclStreamCreate(comm_, &stream_), comm_, "making a stream");
  return stream_;
}

moecclStream_t Communicator::takeStream(bool receives) {
  const std::lock_guard lock(mutex_);
  const auto idle = std::ranges::find(streams_, false, &Lent::taken);
  if (idle != streams_.end()) {
    idle->taken = true;
    idle->receives = receives;
    return idle->stream;
  }
  moecclStream_t stream = nullptr;
  check(moecclStreamCreate(comm_, &stream), comm_, "making a stream");
  streams_.push_back({stream, true, receives});
  return stream;
}

void Communicator::giveBack(moecclStream_t stream) {
  const std::lock_guard lock(mutex_);
  // None is found where the communicator ended meanwhile.
  const auto lent = std::ranges::find(streams_, stream, &Lent::stream);
  if (lent != streams_.end()) lent->taken = false;
}

void Communicator::abort() {
  if (comm_ == nullptr) return;
  moecclCommAbort(comm_);
  comm_ = nullptr;
  destroyStreams();  // their work has ended with the communicator
  destroyEvents();
}

moecclEvent_t Communicator::takeEvent() {
  const std::lock_guard lock(mutex_);
  moecclEvent_t event = nullptr;
  if (events_.empty()) {
    check(moecclEventCreate(&event), nullptr, "making an event");
  } else {
    event = events_.back();
    events_.pop_back();
  }
  ++callbacks_;
  return event;
}

void Communicator::giveBack(moecclEvent_t event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
  if (--callbacks_ == 0) noCallbacks_.notify_all();
}

// An event keeps what its communicator shares with others, and with it the library's thread, which
// calls back and must not be the one that ends it.
void Communicator::destroyEvents() {
  std::vector<moecclEvent_t> events;
  {
    std::optional<pybind11::gil_scoped_release> release;  // callbacks may wait for it
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release.emplace();
    std::unique_lock lock(mutex_);
    noCallbacks_.wait_for(lock, kUnmatched, [this] { return callbacks_ == 0; });
    events.swap(events_);
  }
  for (const moecclEvent_t event : events) moecclEventDestroy(event);
}

void Communicator::destroyStreams() {
  std::vector<Lent> streams;
  {
    const std::lock_guard lock(mutex_);
    streams.swap(streams_);
  }
  for (const Lent& each : streams) moecclStreamDestroy(each.stream);
  moecclStreamDestroy(std::exchange(stream_, nullptr));
}

}  // namespace moeccl::torch

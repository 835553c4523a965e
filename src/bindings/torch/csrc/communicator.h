// A moeccl communicator, and what a process group needs of it.
#pragma once

#include <moeccl/moeccl.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

namespace moeccl::torch {

// Throws c10::DistBackendError; `where`: "rank 1 of 4, group 3", for people.
void check(moecclResult_t result, moecclComm_t comm, const std::string& where);

class Communicator {
 public:
  // Makes a communicator of all ranks that share `store`. Collective.
  static std::shared_ptr<Communicator> create(c10d::Store& store, int rank, int size,
                                              std::chrono::milliseconds timeout);
  // Makes a communicator of `ranks` of this one; collective over them.
  std::shared_ptr<Communicator> subset(const std::vector<int>& ranks,
                                       std::chrono::milliseconds timeout);
  // On the CUDA device that is current. Collective.
  std::shared_ptr<Communicator> onCuda(int rank, int size, std::chrono::milliseconds timeout);
  ~Communicator();

  // The same on all ranks, and another one for each communicator that create() makes.
  const std::string& name() const { return name_; }
  moecclComm_t comm() const { return comm_; }
  bool aborted() const { return comm_ == nullptr; }
  // The timeout of calls from now on.
  void setTimeout(std::chrono::milliseconds timeout);
  // The stream of asynchronous collectives, which run one after another.
  moecclStream_t stream();
  // One for messages, which must not wait for each other; it is given back when they are complete.
  // receives: it has a receive, whose message may never come.
  moecclStream_t takeStream(bool receives);
  void giveBack(moecclStream_t stream);
  // An event whose callback is to come, until the callback's last step.
  moecclEvent_t takeEvent();
  void giveBack(moecclEvent_t event);
  void abort();
  // Waits for work that is under way, and aborts receives that nothing comes for.
  void close();

 private:
  Communicator(moecclComm_t comm, std::string name) : name_(std::move(name)), comm_(comm) {}
  // Whether all work is over.
  bool awaitWork();
  void destroyStreams();
  void destroyEvents();

  const std::string name_;
  moecclComm_t comm_;
  moecclStream_t stream_ = nullptr;
  std::mutex mutex_;
  struct Lent {
    moecclStream_t stream;
    bool taken, receives;
  };
  std::vector<Lent> streams_;
  std::vector<moecclEvent_t> events_;  // that nobody uses
  int callbacks_ = 0;                  // that are to come
  std::condition_variable noCallbacks_;
};

}  // namespace moeccl::torch

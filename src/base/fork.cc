// The handlers of pthread_atfork(3) of the whole library.
#include "src/base/fork.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace moeccl {
namespace {

class Forks {
 public:
  // Never destroyed: a process may fork while it ends.
  static Forks& all() {
    static Forks& instance = *new Forks;
    return instance;
  }

  void add(const ForkHandler& handler) {
    const std::lock_guard lock(mutex_);
    handlers_.push_back(handler);
  }
  unsigned count() const { return count_; }

 private:
  Forks() {
    pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().inChild(); });
  }

  void lock() {
    mutex_.lock();
    for (auto handler = handlers_.rbegin(); handler != handlers_.rend(); ++handler) handler->lock();
  }
  void unlock() {
    for (const ForkHandler& handler : handlers_) handler.unlock();
    mutex_.unlock();
  }
  void inChild() {
    ++count_;
    for (const ForkHandler& handler : handlers_)
      if (handler.inChild != nullptr) handler.inChild();
    unlock();
  }

  std::mutex mutex_;
  std::vector<ForkHandler> handlers_;
  unsigned count_ = 0;  // changes in a child alone, before it has threads
};

}  // namespace

void atFork(const ForkHandler& handler) { Forks::all().add(handler); }

unsigned forks() { return Forks::all().count(); }

}  // namespace moeccl

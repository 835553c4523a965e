// Closes the descriptors in a forked child, by a handler of pthread_atfork(3).
#include "src/watch/forked.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

namespace moeccl {

struct ForkHandlers {
  std::mutex mutex;
  std::set<ClosedInChildren*> all;

  // Never destroyed: a process may fork while it ends.
  static ForkHandlers& instance() {
    static ForkHandlers& handlers = *[] {
      pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                     [] { instance().inChild(); });
      return new ForkHandlers;
    }();
    return handlers;
  }

  void inChild() {
    for (ClosedInChildren* each : all)
      for (int descriptor : std::exchange(each->descriptors_, {})) close(descriptor);
    mutex.unlock();
  }
};

ClosedInChildren::ClosedInChildren(std::vector<int> descriptors)
    : descriptors_(std::move(descriptors)) {
  ForkHandlers& handlers = ForkHandlers::instance();
  const std::lock_guard lock(handlers.mutex);
  handlers.all.insert(this);
}

ClosedInChildren::~ClosedInChildren() {
  ForkHandlers& handlers = ForkHandlers::instance();
  const std::lock_guard lock(handlers.mutex);
  handlers.all.erase(this);
}

void ClosedInChildren::add(int descriptor) {
  const std::lock_guard lock(ForkHandlers::instance().mutex);
  descriptors_.push_back(descriptor);
}

void ClosedInChildren::forget(int descriptor) {
  const std::lock_guard lock(ForkHandlers::instance().mutex);
  std::erase(descriptors_, descriptor);
}

}  // namespace moeccl

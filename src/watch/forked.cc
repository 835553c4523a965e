// Closes the descriptors in a forked child.
#include "src/watch/forked.h"

#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

#include "src/base/fork.h"

namespace moeccl {

struct ForkHandlers {
  std::mutex mutex;
  std::set<ClosedInChildren*> all;

  // Never destroyed: a process may fork while it ends.
  static ForkHandlers& instance() {
    static ForkHandlers& handlers = *[] {
      atFork({[] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
              [] { instance().closeAll(); }});
      return new ForkHandlers;
    }();
    return handlers;
  }

  void closeAll() {
    for (ClosedInChildren* each : all)
      for (int descriptor : std::exchange(each->descriptors_, {})) close(descriptor);
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

// Tells at once when another process of this machine ends, also while nobody has reaped it.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/file_descriptor.h"

namespace moeccl {

// Tells a process from every other one, of all machines and all times. Plain bytes.
struct ProcessIdentity {
  std::uint64_t kernel = 0;    // of the running kernel's boot id
  std::uint64_t pidSpace = 0;  // its pid is a name in this name space
  std::int64_t pid = 0;
  std::uint64_t startTime = 0;  // since boot; 0: unknown

  static ProcessIdentity self();
  bool operator==(const ProcessIdentity&) const = default;
};

class ProcessWatch {
 public:
  ProcessWatch();  // throws std::runtime_error

  // Watches a process on behalf of `key`. A process that cannot be watched (of another machine or
  // pid name space, or this one itself) is left alone. One that has ended is reported like any
  // other.
  void add(int key, const ProcessIdentity& process);
  // Readable while next() has something to tell.
  int fd() const { return events_.get(); }
  // The key of a process that has ended, each once; -1: none. Does not wait.
  int next();

 private:
  const ProcessIdentity self_ = ProcessIdentity::self();
  FileDescriptor events_;                // an epoll of the processes
  FileDescriptor ended_;                 // readable while alreadyEnded_ is not empty
  std::vector<int> alreadyEnded_;        // keys
  std::vector<FileDescriptor> watched_;  // by key
};

}  // namespace moeccl

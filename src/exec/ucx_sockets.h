// The sockets by which UCX's shared memory wakes a rank that sleeps. Their names are in the
// abstract namespace, where whoever shares the network may send to them, and UCX (1.13) ends the
// process when an empty datagram comes. It sends none itself, so that the kernel can be told to
// drop them.
#pragma once

#include <sys/types.h>

#include <set>

namespace moeccl {

class UcxSockets {
 public:
  // Before the worker is made.
  UcxSockets() : before_(named()) {}
  // After it: its sockets take no empty datagram any more. A socket of the caller's that is like
  // them, and that another thread has opened meanwhile, takes none either. Throws
  // std::runtime_error.
  void dropEmptyDatagrams() const;

 private:
  // This process's Unix datagram sockets to which the kernel has given a name, by inode.
  static std::set<ino_t> named();

  const std::set<ino_t> before_;
};

}  // namespace moeccl

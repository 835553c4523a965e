// What the library does when the process forks. A child has copies of all memory but of one thread
// only. A mutex that another thread held would stay locked there, and what it guards half changed.
#pragma once

namespace moeccl {

// How a part of the library gets through a fork. Parts are locked in the reverse order of
// atFork().
struct ForkHandler {
  void (*lock)();     // before the fork
  void (*unlock)();   // after it, in the parent and in the child
  void (*inChild)();  // in the child, while all parts are locked; nullptr: nothing
};

// For all forks from now on.
void atFork(const ForkHandler& handler);

// The forks between the process that first called atFork() and this one. The child of a fork has
// one more than its parent.
unsigned forks();

}  // namespace moeccl

// How the work of a pass, and exchanges beside it, wait for each other.
#pragma once

#include "moeccl/moeccl.h"

namespace moeccl {

// A place in the work of streams. This one is for where the caller's thread computes, and
// everything that is marked is complete.
class Mark {
 public:
  virtual ~Mark() = default;
  // Behind what is queued on the stream now.
  virtual void set(moecclStream_t) {}
  // Whatever is queued on the stream from now on waits for the place where this was set last.
  virtual void holdUp(moecclStream_t) {}
  // The caller waits for it.
  virtual void await() {}
};

// A stream for exchanges that go on while a pass computes on its own.
class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual moecclStream_t get() const = 0;
  // Work that is queued here from now on comes after what is on the pass's stream now.
  virtual void follow(moecclStream_t pass) = 0;
  // Work that the pass computes from now on comes after what is queued here.
  virtual moecclResult_t join(moecclStream_t pass) = 0;
  // Lets exchanges advance, where nothing else does. What fails is found by join.
  virtual void progress() {}
};

}  // namespace moeccl

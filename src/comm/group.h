// Calls between moecclGroupStart and GroupEnd: each thread's wait for the end of its group.
#pragma once

#include <memory>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/comm/communicator.h"

namespace moeccl {

// A call whose arguments have been checked, and whose algorithm is chosen.
struct GroupedCall {
  moecclComm_t comm;
  std::shared_ptr<Communicator> communicator;
  Call call;
  moecclStream_t stream;
};

class Group {
 public:
  static Group& ofThread();

  bool isOpen() const { return depth_ > 0; }
  void start() { ++depth_; }
  // Throws Error where there are too many.
  void add(GroupedCall call);
  // Ends the group that was started last. Where no other is open then, starts all calls together;
  // calls on no stream are complete afterwards. Throws Error.
  void end();
  // That of all calls; nullptr where there are none, or of several communicators.
  std::shared_ptr<Communicator> communicator() const;

 private:
  int depth_ = 0;
  std::vector<GroupedCall> calls_;
};

// Throws Error unless each message that this rank sends to itself has its receive among the others.
void requireCounterparts(const Communicator& communicator, const std::vector<Message>& messages);

}  // namespace moeccl

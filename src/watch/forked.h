// A connection ends for its peer when its last copy is closed, and a child that the application
// forks has copies of all. So that they do not outlive the rank, a child closes them at once.
#pragma once

#include <vector>

namespace moeccl {

// The descriptors that children close, as long as this lives.
class ClosedInChildren {
 public:
  explicit ClosedInChildren(std::vector<int> descriptors);
  ~ClosedInChildren();
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;

  void add(int descriptor);
  // Before the owner closes it: the number may be another file's then.
  void forget(int descriptor);

 private:
  friend struct ForkHandlers;
  std::vector<int> descriptors_;
};

}  // namespace moeccl

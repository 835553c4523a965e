// Calls that PyTorch's coalescing manager gathers: noted one by one, made together at its end.
#pragma once

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include "tensors.h"

namespace moeccl::torch {

class Coalescing {
 public:
  // In the thread that begins to coalesce.
  Coalescing();

  // Whether an exception has left the block, which then ends nothing: what was noted is void.
  bool abandoned() const;
  // A call whose arguments are checked. stream: of CUDA, or nullptr on CPUs. Throws where other
  // calls of the group are of the other kind of memory.
  void note(Needs needs, Launch launch, std::shared_ptr<Communicator> communicator,
            moecclStream_t stream, bool onCuda);
  // Makes all calls at once, those on CPUs on `stream`.
  void launch(moecclStream_t stream, const std::string& where) const;

  bool onCuda() const { return onCuda_; }
  // The needs of all calls, once they are launched.
  Needs takeNeeds() { return std::move(needs_); }

 private:
  struct Noted {
    Launch launch;
    std::shared_ptr<Communicator> communicator;
    moecclStream_t stream;
  };

  std::shared_ptr<PyObject> block_;  // of Python, or nothing where it is not known
  std::vector<Noted> noted_;
  Needs needs_;
  bool onCuda_ = false;
};

}  // namespace moeccl::torch

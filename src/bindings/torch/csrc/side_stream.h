// The stream beside CUDA's current one on which calls run that the caller waits for later: what it
// enqueues meanwhile, such as the rest of a backward pass, runs beside them.
#pragma once

#include <c10/core/Stream.h>

#include <optional>

#include "work.h"

namespace moeccl::torch {

class SideStream {
 public:
  // The stream, behind all that is on the device's current one by now.
  c10::Stream behindCurrent(c10::Device device);
  // The memory of these tensors is given to nobody else before `stream` has come so far, though
  // nobody may hold them then.
  static void keep(const MoecclWork::Needs& needs, const c10::Stream& stream);

 private:
  std::optional<c10::Stream> stream_;  // made at the first call
};

}  // namespace moeccl::torch

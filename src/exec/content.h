// What the messages of a run hold, where that is known only when they begin: how many bytes of the
// most that there can be, and which. The plan then says only who sends when, and to whom; its
// blocks stand for nothing in memory.
#pragma once

#include <cstddef>

#include "algorithms/plan.h"

namespace moeccl {

class Content {
 public:
  virtual ~Content() = default;

  // A run begins, on these buffers. Nothing but the functions below happens until it is over.
  virtual void begin(const std::byte* input, std::byte* output) = 0;
  // Of a send or a receive of the run.
  virtual std::size_t mostBytes(const Op& op) const = 0;
  // Writes the message of a send, whose dependencies are met; returns its bytes.
  virtual std::size_t write(const Op& op, std::byte* to) = 0;
  // The message of a receive has come, and stays where it is until the run is over. Returns whether
  // it is one.
  virtual bool read(const Op& op, const std::byte* from, std::size_t bytes) = 0;
  // The work of a copy or reduction.
  virtual void work() = 0;
};

}  // namespace moeccl

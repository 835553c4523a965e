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

  // Why a message does not fit the run: how many bytes a rank sent, and how many were expected.
  struct Misfit {
    int peer;
    std::size_t expected, arrived;
  };

  // A run begins, on these buffers. Nothing but the functions below happens until it is over.
  virtual void begin(const Plan& plan, const std::byte* input, std::byte* output) = 0;
  // The most bytes of a send or a receive of the run.
  virtual std::size_t mostBytes(const Op& op) const = 0;
  // Writes the message of a send, whose dependencies are met; returns its bytes.
  virtual std::size_t write(const Op& op, std::byte* to) = 0;
  // The message of a receive has come, and stays where it is until the run is over. Returns whether
  // it is one; if not, it may say more in *misfit.
  virtual bool read(const Op& op, const std::byte* from, std::size_t bytes, Misfit* misfit) = 0;
  // The work of a copy or reduction; returns whether what it found was as expected.
  virtual bool work(const Op& op, Misfit* misfit) = 0;
};

}  // namespace moeccl

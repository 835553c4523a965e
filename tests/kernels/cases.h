// The table that the kernels are checked and timed by: each case is one call, as moeccl makes it
// and by the plain loops of plain.h, on the same data.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace moeccl {

struct KernelCase {
  std::string kernel, type, op, shape;
  bool timed;         // large enough to be worth measuring
  std::size_t bytes;  // read and written by a call
  std::function<void()> fast, plain;
  // Makes what is not determined, which NaN a sum is, the same everywhere in an output.
  std::function<void(std::vector<std::byte>&)> settle;
  // With what lies around them, which must stay as it is.
  std::vector<std::byte>*fastOutput, *plainOutput;

  std::string name() const { return kernel + " " + type + " " + op + " " + shape; }
};

// One after another, as the data of all together would be large.
void forEachCase(const std::function<void(const KernelCase&)>& visit);

}  // namespace moeccl

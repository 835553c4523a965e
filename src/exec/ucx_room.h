// What UCX needs of a node and of this process. It ends the process where descriptors run short,
// and fails with a text that says nothing where memory does, so both are looked at before
// (missingSharedMemory in ucx.h is the other).
#pragma once

#include <string>

namespace moeccl {

// "/dev/shm has 12.0 of 64.0 MiB free, 16 ranks that share memory need 72.0"
std::string describeSharedMemory(int ranks);
// Raises this process's limit of descriptors where `ranks` of a node need more. Throws
// std::runtime_error where it may not, with the limit and what is needed.
void requireDescriptors(int ranks);

}  // namespace moeccl

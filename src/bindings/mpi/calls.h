// What the functions that stand before MPI's have in common.
#pragma once

#include <moeccl/moeccl.h>
#include <mpi.h>

#include <cstddef>

#include "arguments.h"
#include "communicator.h"
#include "settings.h"

#define MOECCL_SHIM extern "C" __attribute__((visibility("default")))

namespace moeccl::mpi {

inline constexpr moecclDataType_t kBytes = moecclUint8;

inline bool serves(Collective collective) {
  return settings().serves[static_cast<std::size_t>(collective)];
}

// Bytes of a block; 0: none, or MPI refuses it.
inline std::size_t blockBytes(int count, MPI_Datatype type) {
  return isSound(count, type) ? static_cast<std::size_t>(count) * sizeOf(type) : 0;
}

// Done with what MPI could not copy, too.
inline moecclResult_t stored(moecclResult_t result, Flat& received) {
  if (result != moecclSuccess) return result;
  received.store();
  return received.good() ? moecclSuccess : moecclInternalError;
}

// Whether an error is of arguments, which MPI looks at before it asks other ranks.
bool isOfArguments(int code);

// MPI's call `theirs` with arguments that it may refuse on this rank, without asking others. They
// may wait in moeccl's, and are told.
template <typename Theirs>
int refused(MPI_Comm comm, Theirs theirs) {
  const int code = theirs();
  if (code != MPI_SUCCESS && isOfArguments(code))
    if (Communicator* const mine = Communicator::joined(comm)) mine->tellRefusal(comm);
  return code;
}

// The same for an array or a buffer at NULL, which not every MPI looks for.
int refusedNull(int code, const char* what, MPI_Comm comm);

int rankOf(MPI_Comm comm);

// What a rank sends to itself, part `from`, must be what it receives, part `to`: else blocks are
// not as large as this rank says. And elements that MPI has to pack may be too large for that.
Doubt doubtOf(const Parts& in, std::size_t from, const Parts& out, std::size_t to);

}  // namespace moeccl::mpi

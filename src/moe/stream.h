// A stream of the public API, with an owner.
#pragma once

#include <memory>

#include "moeccl/moeccl.h"
#include "src/error.h"

namespace moeccl {

class OwnStream {
 public:
  // For collectives of `comm` and its relatives, which must outlive it. Throws Error.
  explicit OwnStream(moecclComm_t comm) {
    moecclStream_t stream = nullptr;
    const moecclResult_t result = moecclStreamCreate(comm, &stream);
    if (result != moecclSuccess) throw Error(result, moecclGetLastError(comm));
    stream_.reset(stream);
  }

  moecclStream_t get() const { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(void* stream) const { moecclStreamDestroy(stream); }
  };
  std::unique_ptr<void, Destroy> stream_;
};

}  // namespace moeccl

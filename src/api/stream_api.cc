// The public functions of host streams. GPU communicators take streams of CUDA instead.
#include "moeccl/moeccl.h"
#include "src/api/handles.h"

using moeccl::boundary;
using moeccl::require;
using moeccl::streamOf;
using moeccl::takeStream;

moecclResult_t moecclStreamCreate(moecclComm_t comm, moecclStream_t* stream) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclStreamCreate", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    require(stream != nullptr, "stream is NULL; pass where to store the stream");
    auto* const host = dynamic_cast<moeccl::HostCommunicator*>(&communicator);
    if (host == nullptr)
      throw moeccl::Error(
          moecclInvalidUsage,
          "comm is on GPUs, whose streams are CUDA's: make one with cudaStreamCreate");
    auto made = std::make_unique<moeccl::Stream>(host->sharedDomain());
    moeccl::addHandle(moeccl::HandleKind::stream, streamHandle(*made));
    *stream = streamHandle(*made.release());
  });
}

moecclResult_t moecclStreamQuery(moecclStream_t stream) {
  bool complete = false;
  const moecclResult_t result = boundary("moecclStreamQuery", nullptr, [&] {
    require(stream != nullptr, "stream is NULL; calls on the NULL stream are complete already");
    complete = streamOf(stream)->query();
  });
  return result == moecclSuccess && !complete ? moecclInProgress : result;
}

moecclResult_t moecclStreamSynchronize(moecclStream_t stream) {
  if (stream == nullptr) return moecclSuccess;
  return boundary("moecclStreamSynchronize", nullptr, [&] { streamOf(stream)->synchronize(); });
}

moecclResult_t moecclStreamDestroy(moecclStream_t stream) {
  if (stream == nullptr) return moecclSuccess;
  return boundary("moecclStreamDestroy", nullptr, [&] {
    const std::unique_ptr<moeccl::Stream> freed(takeStream(stream));
    freed->synchronize();
  });
}

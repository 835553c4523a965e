// MPI_Ialltoall. See shim.cc.
#include <memory>
#include <utility>

#include "calls.h"

using namespace moeccl::mpi;

namespace {

// A call that is under way: its buffers, its event and MPI's request.
struct Pending {
  Parts in, out;
  Flat sent, received;
  moecclEvent_t event = nullptr;
  MPI_Request request = MPI_REQUEST_NULL;
  moecclResult_t result = moecclSuccess;

  Pending(const void* sendbuf, Parts sends, bool copies, void* recvbuf, Parts recvs)
      : in(std::move(sends)),
        out(std::move(recvs)),
        sent(sendbuf, in, copies),
        received(recvbuf, out) {}
  ~Pending() { moecclEventDestroy(event); }
};

int query(void* state, MPI_Status* status) {
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return static_cast<Pending*>(state)->result == moecclSuccess ? MPI_SUCCESS : MPI_ERR_OTHER;
}
int release(void* state) {
  delete static_cast<Pending*>(state);
  return MPI_SUCCESS;
}
int cancel(void*, int) { return MPI_SUCCESS; }

void complete(moecclResult_t result, void* state) {
  auto* const pending = static_cast<Pending*>(state);
  pending->result = stored(result, pending->received);
  PMPI_Grequest_complete(pending->request);
}

}  // namespace

// Served where MPI_THREAD_MULTIPLE lets a thread complete requests, once a blocking call on the
// communicator has been served: nothing here may wait for other ranks.
MOECCL_SHIM int MPI_Ialltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                              void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm,
                              MPI_Request* request) {
  const auto theirs = [&] {
    noteServed(Collective::iAllToAll, false);
    return PMPI_Ialltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
                          request);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  const std::size_t bytes = blockBytes(recvcount, recvtype);
  Communicator* const mine = serves(Collective::iAllToAll) ? Communicator::joined(comm) : nullptr;
  if (mine == nullptr || mine->threaded() == nullptr) return theirs();
  if (request == nullptr || recvbuf == MPI_IN_PLACE || !isSound(recvcount, recvtype) ||
      (!inPlace && !isSound(sendcount, sendtype))) {
    const int code = theirs();
    if (code != MPI_SUCCESS) mine->tellThreadedRefusal();
    return code;
  }
  if (bytes == 0) return theirs();
  const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
  const Parts in = inPlace ? out : Parts::equal(sendtype, sendcount, mine->ranks());
  Doubt doubt = doubtOf(in, 0, out, 0);
  if (lacksMemory(recvbuf, bytes, recvtype) || lacksMemory(sendbuf, in.elements(), in.type))
    doubt = {MPI_ERR_BUFFER, "MPI_Ialltoall: a buffer is NULL"};
  if (doubt.code != MPI_SUCCESS) {
    mine->tellThreadedRefusal();
    return mine->fail(doubt.code, doubt.why, comm);
  }
  auto pending = std::make_unique<Pending>(inPlace ? recvbuf : sendbuf, in, inPlace, recvbuf, out);
  const int made = PMPI_Grequest_start(query, release, cancel, pending.get(), request);
  if (made != MPI_SUCCESS) return made;
  Pending* const call = pending.release();
  call->request = *request;
  moecclResult_t result = moecclAllToAll(call->sent.data(), call->received.data(), bytes, kBytes,
                                         mine->threaded(), mine->stream());
  if (result == moecclSuccess) result = moecclEventCreate(&call->event);
  if (result == moecclSuccess) result = moecclEventRecord(call->event, mine->stream());
  if (result == moecclSuccess) result = moecclEventSetCallback(call->event, complete, call);
  noteServed(Collective::iAllToAll, true);
  // The request tells, as MPI's would.
  if (result != moecclSuccess) complete(result, call);
  return MPI_SUCCESS;
}

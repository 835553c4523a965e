// The collectives of MPI that moeccl may serve, in front of MPI's own (PMPI). A call that it does
// not serve goes there unchanged. Whether it does is decided only by what is equal on all ranks:
// the communicator, and the bytes that a block has whatever datatypes describe them.
#include <moeccl/moeccl.h>
#include <mpi.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "arguments.h"
#include "communicator.h"
#include "settings.h"

#define MOECCL_SHIM extern "C" __attribute__((visibility("default")))

namespace {

using namespace moeccl::mpi;

bool serves(Collective collective) {
  return settings().serves[static_cast<std::size_t>(collective)];
}

// MPI says what is wrong with wrong arguments.
bool plausible(int count, MPI_Datatype type) { return count >= 0 && type != MPI_DATATYPE_NULL; }

// Bytes of a block; 0: MPI's call.
std::size_t blockBytes(int count, MPI_Datatype type) {
  return plausible(count, type) ? static_cast<std::size_t>(count) * sizeOf(type) : 0;
}

constexpr moecclDataType_t kBytes = moecclUint8;

// Done with what MPI could not copy, too.
moecclResult_t stored(moecclResult_t result, Flat& received) {
  if (result != moecclSuccess) return result;
  received.store();
  return received.good() ? moecclSuccess : moecclInternalError;
}

}  // namespace

MOECCL_SHIM int MPI_Alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                             void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allToAll, false);
    return PMPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  const std::size_t bytes = blockBytes(recvcount, recvtype);
  if (!serves(Collective::allToAll) || bytes == 0 || (!inPlace && !plausible(sendcount, sendtype)))
    return theirs();
  Communicator* const mine = Communicator::of(comm, bytes);
  if (mine == nullptr) return theirs();
  return mine->serve(
      Collective::allToAll, bytes, comm,
      [&] {
        const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
        const Parts in = inPlace ? out : Parts::equal(sendtype, sendcount, mine->ranks());
        Flat sent(inPlace ? recvbuf : sendbuf, in, inPlace), received(recvbuf, out);
        return stored(
            moecclAllToAll(sent.data(), received.data(), bytes, kBytes, mine->comm(), nullptr),
            received);
      },
      theirs);
}

MOECCL_SHIM int MPI_Alltoallv(const void* sendbuf, const int* sendcounts, const int* sdispls,
                              MPI_Datatype sendtype, void* recvbuf, const int* recvcounts,
                              const int* rdispls, MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allToAllv, false);
    return PMPI_Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls,
                          recvtype, comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  if (!serves(Collective::allToAllv) || recvtype == MPI_DATATYPE_NULL ||
      (!inPlace && sendtype == MPI_DATATYPE_NULL))
    return theirs();
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  // No rank knows all sizes, so all calls are of one kind.
  return mine->serve(
      Collective::allToAllv, 0, comm,
      [&] {
        const Parts out = Parts::unequal(recvtype, recvcounts, rdispls, mine->ranks());
        const Parts in =
            inPlace ? out : Parts::unequal(sendtype, sendcounts, sdispls, mine->ranks());
        Flat sent(inPlace ? recvbuf : sendbuf, in, inPlace), received(recvbuf, out);
        return stored(
            moecclAllToAllv(sent.data(), sent.counts(), sent.displs(), received.data(),
                            received.counts(), received.displs(), kBytes, mine->comm(), nullptr),
            received);
      },
      theirs);
}

MOECCL_SHIM int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                              void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allGather, false);
    return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  const std::size_t bytes = blockBytes(recvcount, recvtype);
  if (!serves(Collective::allGather) || bytes == 0 || (!inPlace && !plausible(sendcount, sendtype)))
    return theirs();
  Communicator* const mine = Communicator::of(comm, bytes);
  if (mine == nullptr) return theirs();
  return mine->serve(
      Collective::allGather, bytes, comm,
      [&] {
        int rank = 0;
        PMPI_Comm_rank(comm, &rank);
        const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
        Parts in = Parts::equal(inPlace ? recvtype : sendtype, inPlace ? recvcount : sendcount, 1);
        if (inPlace) in.displs[0] = std::ptrdiff_t{rank} * recvcount;
        Flat received(recvbuf, out);
        Flat sent(inPlace ? recvbuf : sendbuf, in);
        const std::byte* const from = sent.data() + sent.displs()[0];
        return stored(moecclAllGather(from, received.data(), bytes, kBytes, mine->comm(), nullptr),
                      received);
      },
      theirs);
}

MOECCL_SHIM int MPI_Allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                               void* recvbuf, const int* recvcounts, const int* displs,
                               MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allGatherv, false);
    return PMPI_Allgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype,
                           comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  if (!serves(Collective::allGatherv) || recvtype == MPI_DATATYPE_NULL ||
      (!inPlace && !plausible(sendcount, sendtype)))
    return theirs();
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  const Parts out = Parts::unequal(recvtype, recvcounts, displs, mine->ranks());
  const std::size_t bytes =
      std::reduce(out.counts.begin(), out.counts.end(), std::size_t{}) * sizeOf(recvtype);
  if (bytes == 0) return theirs();
  return mine->serve(
      Collective::allGatherv, bytes, comm,
      [&] {
        int rank = 0;
        PMPI_Comm_rank(comm, &rank);
        const auto own = static_cast<std::size_t>(rank);
        const Parts in = inPlace ? Parts{recvtype, {out.counts[own]}, {out.displs[own]}}
                                 : Parts::equal(sendtype, sendcount, 1);
        Flat received(recvbuf, out);
        Flat sent(inPlace ? recvbuf : sendbuf, in);
        return stored(
            moecclAllGatherv(sent.data() + sent.displs()[0], sent.counts()[0], received.data(),
                             received.counts(), received.displs(), kBytes, mine->comm(), nullptr),
            received);
      },
      theirs);
}

namespace {

struct Reduction {
  moecclDataType_t type;
  moecclRedOp_t op;
};

// What moeccl reduces as MPI does.
std::optional<Reduction> reductionOf(Collective collective, MPI_Datatype type, MPI_Op op) {
  if (!serves(collective) || type == MPI_DATATYPE_NULL) return std::nullopt;
  const std::optional<moecclDataType_t> known = typeOf(type);
  const std::optional<moecclRedOp_t> with = operatorOf(op);
  if (!known || !with || (!isExact(*known, *with) && !settings().floatSums)) return std::nullopt;
  // MPI refuses it.
  const bool real = *known == moecclFloat32 || *known == moecclFloat64;
  if (real && *with >= moecclBitAnd) return std::nullopt;
  return Reduction{*known, *with};
}

}  // namespace

MOECCL_SHIM int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype,
                              MPI_Op op, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allReduce, false);
    return PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm);
  };
  const std::optional<Reduction> known = reductionOf(Collective::allReduce, datatype, op);
  if (!known || count <= 0) return theirs();
  Communicator* const mine = Communicator::of(comm, blockBytes(count, datatype));
  if (mine == nullptr) return theirs();
  return mine->serve(
      Collective::allReduce, blockBytes(count, datatype), comm,
      [&] {
        return moecclAllReduce(sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf, recvbuf,
                               static_cast<std::size_t>(count), known->type, known->op,
                               mine->comm(), nullptr);
      },
      theirs);
}

MOECCL_SHIM int MPI_Reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount,
                                         MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::reduceScatter, false);
    return PMPI_Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm);
  };
  const std::optional<Reduction> known = reductionOf(Collective::reduceScatter, datatype, op);
  if (!known || recvcount <= 0) return theirs();
  Communicator* const mine = Communicator::of(comm, blockBytes(recvcount, datatype));
  if (mine == nullptr) return theirs();
  const std::size_t bytes = blockBytes(recvcount, datatype);
  return mine->serve(
      Collective::reduceScatter, bytes, comm,
      [&] {
        const auto count = static_cast<std::size_t>(recvcount);
        // In place the result comes first, where block 0 of the terms is.
        const bool inPlace = sendbuf == MPI_IN_PLACE;
        std::vector<std::byte> result(inPlace ? bytes : 0);
        const moecclResult_t done =
            moecclReduceScatter(inPlace ? recvbuf : sendbuf, inPlace ? result.data() : recvbuf,
                                count, known->type, known->op, mine->comm(), nullptr);
        if (inPlace && done == moecclSuccess) std::memcpy(recvbuf, result.data(), bytes);
        return done;
      },
      theirs);
}

MOECCL_SHIM int MPI_Reduce_scatter(const void* sendbuf, void* recvbuf, const int* recvcounts,
                                   MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::reduceScatter, false);
    return PMPI_Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm);
  };
  const std::optional<Reduction> known = reductionOf(Collective::reduceScatter, datatype, op);
  if (!known || recvcounts == nullptr) return theirs();
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  const auto ranks = static_cast<std::size_t>(mine->ranks());
  const std::vector<std::size_t> counts(recvcounts, recvcounts + ranks);
  std::vector<std::size_t> displs(ranks, 0);
  std::partial_sum(counts.begin(), counts.end() - 1, displs.begin() + 1);
  const std::size_t total = displs.back() + counts.back();
  if (total == 0) return theirs();
  return mine->serve(
      Collective::reduceScatter, total * sizeOf(datatype) / ranks, comm,
      [&] {
        int rank = 0;
        PMPI_Comm_rank(comm, &rank);
        const bool inPlace = sendbuf == MPI_IN_PLACE;
        const std::size_t bytes = counts[static_cast<std::size_t>(rank)] * sizeOf(datatype);
        std::vector<std::byte> result(inPlace ? bytes : 0);
        const moecclResult_t done = moecclReduceScatterv(
            inPlace ? recvbuf : sendbuf, counts.data(), displs.data(),
            inPlace ? result.data() : recvbuf, known->type, known->op, mine->comm(), nullptr);
        if (inPlace && done == moecclSuccess && bytes > 0)
          std::memcpy(recvbuf, result.data(), bytes);
        return done;
      },
      theirs);
}

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
  if (!serves(Collective::iAllToAll) || bytes == 0 || request == nullptr ||
      (!inPlace && !plausible(sendcount, sendtype)))
    return theirs();
  Communicator* const mine = Communicator::joined(comm);
  if (mine == nullptr || mine->threaded() == nullptr) return theirs();
  const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
  auto pending = std::make_unique<Pending>(
      inPlace ? recvbuf : sendbuf, inPlace ? out : Parts::equal(sendtype, sendcount, mine->ranks()),
      inPlace, recvbuf, out);
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

MOECCL_SHIM int MPI_Finalize() {
  report(MPI_COMM_WORLD);
  Communicator::releaseAll();
  return PMPI_Finalize();
}

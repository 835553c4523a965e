// The collectives of MPI that moeccl may serve, in front of MPI's own (PMPI). A call that it does
// not serve goes there unchanged. Whether it does is decided only by what is equal on all ranks:
// the communicator, and the bytes that a block has whatever datatypes describe them. Arguments that
// only this rank can see to be wrong end the call on all ranks.
#include <numeric>
#include <vector>

#include "calls.h"

using namespace moeccl::mpi;

MOECCL_SHIM int MPI_Alltoall(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                             void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allToAll, false);
    return PMPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  if (!serves(Collective::allToAll)) return theirs();
  if (recvbuf == MPI_IN_PLACE || !isSound(recvcount, recvtype) ||
      (!inPlace && !isSound(sendcount, sendtype)))
    return refused(comm, theirs);
  const std::size_t bytes = blockBytes(recvcount, recvtype);
  if (bytes == 0) return theirs();
  if (lacksMemory(recvbuf, bytes, recvtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Alltoall: recvbuf", comm);
  if (lacksMemory(sendbuf, blockBytes(sendcount, sendtype), sendtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Alltoall: sendbuf", comm);
  Communicator* const mine = Communicator::of(comm, bytes);
  if (mine == nullptr) return theirs();
  const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
  const Parts in = inPlace ? out : Parts::equal(sendtype, sendcount, mine->ranks());
  return mine->serve(
      Collective::allToAll, bytes, comm, doubtOf(in, 0, out, 0),
      [&] {
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
  if (!serves(Collective::allToAllv)) return theirs();
  if (recvbuf == MPI_IN_PLACE) return refused(comm, theirs);
  if (recvcounts == nullptr || rdispls == nullptr ||
      (!inPlace && (sendcounts == nullptr || sdispls == nullptr)))
    return refusedNull(MPI_ERR_ARG, "MPI_Alltoallv: an array", comm);
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  if (!areSound(recvcounts, mine->ranks(), recvtype) ||
      (!inPlace && !areSound(sendcounts, mine->ranks(), sendtype)))
    return refused(comm, theirs);
  const Parts out = Parts::unequal(recvtype, recvcounts, rdispls, mine->ranks());
  const Parts in = inPlace ? out : Parts::unequal(sendtype, sendcounts, sdispls, mine->ranks());
  if (lacksMemory(recvbuf, out.elements(), recvtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Alltoallv: recvbuf", comm);
  if (lacksMemory(sendbuf, in.elements(), in.type))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Alltoallv: sendbuf", comm);
  const auto own = static_cast<std::size_t>(rankOf(comm));
  // No rank knows all sizes, so all calls are of one kind.
  const int code = mine->serve(
      Collective::allToAllv, 0, comm, doubtOf(in, own, out, own),
      [&] {
        Flat sent(inPlace ? recvbuf : sendbuf, in, inPlace), received(recvbuf, out);
        return stored(
            moecclAllToAllv(sent.data(), sent.counts(), sent.displs(), received.data(),
                            received.counts(), received.displs(), kBytes, mine->comm(), nullptr),
            received);
      },
      theirs);
  // Without elements this rank has taken part like others, and MPI may refuse its type.
  const bool noType = recvtype == MPI_DATATYPE_NULL || in.type == MPI_DATATYPE_NULL;
  return code == MPI_SUCCESS && noType && !takesNoType() ? theirs() : code;
}

MOECCL_SHIM int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                              void* recvbuf, int recvcount, MPI_Datatype recvtype, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allGather, false);
    return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  };
  const bool inPlace = sendbuf == MPI_IN_PLACE;
  if (!serves(Collective::allGather)) return theirs();
  if (recvbuf == MPI_IN_PLACE || !isSound(recvcount, recvtype) ||
      (!inPlace && !isSound(sendcount, sendtype)))
    return refused(comm, theirs);
  const std::size_t bytes = blockBytes(recvcount, recvtype);
  if (bytes == 0) return theirs();
  if (lacksMemory(recvbuf, bytes, recvtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Allgather: recvbuf", comm);
  if (lacksMemory(sendbuf, blockBytes(sendcount, sendtype), sendtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Allgather: sendbuf", comm);
  Communicator* const mine = Communicator::of(comm, bytes);
  if (mine == nullptr) return theirs();
  const Parts out = Parts::equal(recvtype, recvcount, mine->ranks());
  Parts in = Parts::equal(inPlace ? recvtype : sendtype, inPlace ? recvcount : sendcount, 1);
  if (inPlace) in.displs[0] = std::ptrdiff_t{rankOf(comm)} * recvcount;
  return mine->serve(
      Collective::allGather, bytes, comm, doubtOf(in, 0, out, 0),
      [&] {
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
  if (!serves(Collective::allGatherv)) return theirs();
  if (recvcounts == nullptr || displs == nullptr)
    return refusedNull(MPI_ERR_ARG, "MPI_Allgatherv: an array", comm);
  if (recvbuf == MPI_IN_PLACE || (!inPlace && !areSound(&sendcount, 1, sendtype)))
    return refused(comm, theirs);
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  if (!areSound(recvcounts, mine->ranks(), recvtype)) return refused(comm, theirs);
  const Parts out = Parts::unequal(recvtype, recvcounts, displs, mine->ranks());
  const std::size_t bytes =
      std::reduce(out.counts.begin(), out.counts.end(), std::size_t{}) * sizeOf(recvtype);
  if (bytes == 0) return theirs();
  const auto own = static_cast<std::size_t>(rankOf(comm));
  const Parts in = inPlace ? Parts{recvtype, {out.counts[own]}, {out.displs[own]}}
                           : Parts::equal(sendtype, sendcount, 1);
  if (lacksMemory(recvbuf, bytes, recvtype))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Allgatherv: recvbuf", comm);
  if (lacksMemory(sendbuf, in.elements(), in.type))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Allgatherv: sendbuf", comm);
  const int code = mine->serve(
      Collective::allGatherv, bytes, comm, doubtOf(in, 0, out, own),
      [&] {
        Flat received(recvbuf, out);
        Flat sent(inPlace ? recvbuf : sendbuf, in);
        return stored(
            moecclAllGatherv(sent.data() + sent.displs()[0], sent.counts()[0], received.data(),
                             received.counts(), received.displs(), kBytes, mine->comm(), nullptr),
            received);
      },
      theirs);
  const bool noType = in.type == MPI_DATATYPE_NULL;
  return code == MPI_SUCCESS && noType && !takesNoType() ? theirs() : code;
}

MOECCL_SHIM int MPI_Finalize() {
  report(MPI_COMM_WORLD);
  Communicator::releaseAll();
  return PMPI_Finalize();
}

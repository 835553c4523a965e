// The reductions of MPI that moeccl may serve. See shim.cc.
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "calls.h"

using namespace moeccl::mpi;

namespace {

struct Reduction {
  moecclDataType_t type;
  moecclRedOp_t op;
};

// The type and the operator where moeccl reduces as MPI does. Counts calls that stay with MPI
// because they add floats.
std::optional<Reduction> reductionOf(Collective collective, MPI_Datatype type, MPI_Op op,
                                     MPI_Comm comm) {
  const std::optional<moecclDataType_t> known = typeOf(type);
  const std::optional<moecclRedOp_t> with = operatorOf(op);
  if (!known || !with) return std::nullopt;
  // MPI refuses it.
  const bool real = *known == moecclFloat32 || *known == moecclFloat64;
  if (real && *with >= moecclBitAnd) return std::nullopt;
  if (!isExact(*known, *with) && !settings().floatSums) {
    int ranks = 0;
    if (PMPI_Comm_size(comm, &ranks) == MPI_SUCCESS && ranks > 1) noteFloatSum(collective);
    return std::nullopt;
  }
  return Reduction{*known, *with};
}

}  // namespace

MOECCL_SHIM int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype,
                              MPI_Op op, MPI_Comm comm) {
  const auto theirs = [&] {
    noteServed(Collective::allReduce, false);
    return PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm);
  };
  if (!serves(Collective::allReduce)) return theirs();
  const std::optional<Reduction> known = reductionOf(Collective::allReduce, datatype, op, comm);
  if (!known || recvbuf == MPI_IN_PLACE || !isSound(count, datatype)) return refused(comm, theirs);
  if (count == 0) return theirs();
  if (sendbuf == nullptr || recvbuf == nullptr)
    return refusedNull(MPI_ERR_BUFFER, "MPI_Allreduce: a buffer", comm);
  Communicator* const mine = Communicator::of(comm, blockBytes(count, datatype));
  if (mine == nullptr) return theirs();
  return mine->serve(
      Collective::allReduce, blockBytes(count, datatype), comm, {},
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
  if (!serves(Collective::reduceScatter)) return theirs();
  const std::optional<Reduction> known = reductionOf(Collective::reduceScatter, datatype, op, comm);
  if (!known || recvbuf == MPI_IN_PLACE || !isSound(recvcount, datatype))
    return refused(comm, theirs);
  if (recvcount == 0) return theirs();
  if (sendbuf == nullptr || recvbuf == nullptr)
    return refusedNull(MPI_ERR_BUFFER, "MPI_Reduce_scatter_block: a buffer", comm);
  Communicator* const mine = Communicator::of(comm, blockBytes(recvcount, datatype));
  if (mine == nullptr) return theirs();
  const std::size_t bytes = blockBytes(recvcount, datatype);
  return mine->serve(
      Collective::reduceScatter, bytes, comm, {},
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
  if (!serves(Collective::reduceScatter)) return theirs();
  const std::optional<Reduction> known = reductionOf(Collective::reduceScatter, datatype, op, comm);
  if (recvcounts == nullptr)
    return refusedNull(MPI_ERR_ARG, "MPI_Reduce_scatter: recvcounts", comm);
  if (!known || recvbuf == MPI_IN_PLACE) return refused(comm, theirs);
  Communicator* const mine = Communicator::of(comm, 0);
  if (mine == nullptr) return theirs();
  if (!areSound(recvcounts, mine->ranks(), datatype)) return refused(comm, theirs);
  const auto ranks = static_cast<std::size_t>(mine->ranks());
  const std::vector<std::size_t> counts(recvcounts, recvcounts + ranks);
  std::vector<std::size_t> displs(ranks, 0);
  std::partial_sum(counts.begin(), counts.end() - 1, displs.begin() + 1);
  const std::size_t total = displs.back() + counts.back();
  if (total == 0) return theirs();
  const auto own = static_cast<std::size_t>(rankOf(comm));
  if (sendbuf == nullptr || (recvbuf == nullptr && (sendbuf == MPI_IN_PLACE || counts[own] > 0)))
    return refusedNull(MPI_ERR_BUFFER, "MPI_Reduce_scatter: a buffer", comm);
  return mine->serve(
      Collective::reduceScatter, total * sizeOf(datatype) / ranks, comm, {},
      [&] {
        const bool inPlace = sendbuf == MPI_IN_PLACE;
        const std::size_t bytes = counts[own] * sizeOf(datatype);
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

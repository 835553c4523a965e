// The collectives of a communicator.
#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/api/group.h"

namespace moeccl {
namespace {

const void* at(const void* buffer, std::size_t block, int index) {
  return static_cast<const std::byte*>(buffer) + block * static_cast<std::size_t>(index);
}

// In place: the smaller buffer is the rank's own block of the larger one.
void requireApart(const void* smaller, std::size_t smallerBytes, const void* larger,
                  std::size_t largerBytes, const void* own, const char* inPlace) {
  require(smaller == own || !overlap(smaller, smallerBytes, larger, largerBytes), inPlace);
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                              moecclDataType_t datatype, moecclComm_t comm, moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclAllToAll", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes = moeccl::bytesOf(count, "count", datatype, communicator.ranks());
    moeccl::requireBuffers(sendbuff, recvbuff, count);
    moeccl::require(!moeccl::overlap(sendbuff, bytes.buffer, recvbuff, bytes.buffer),
                    "sendbuff and recvbuff overlap; all-to-all does not work in place");
    moeccl::requireStream(communicator, stream);
    moeccl::launch(state,
                   {moeccl::choose(*state, moeccl::Collective::allToAll, bytes.block), sendbuff,
                    recvbuff, bytes.block, datatype},
                   stream);
  });
}

moecclResult_t moecclAllGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                               moecclDataType_t datatype, moecclComm_t comm,
                               moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclAllGather", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes =
        moeccl::bytesOf(sendCount, "sendCount", datatype, communicator.ranks());
    moeccl::requireBuffers(sendbuff, recvbuff, sendCount);
    moeccl::requireApart(
        sendbuff, bytes.block, recvbuff, bytes.buffer,
        moeccl::at(recvbuff, bytes.block, communicator.rank()),
        "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff + rank * sendCount");
    moeccl::requireStream(communicator, stream);
    moeccl::launch(state,
                   {moeccl::choose(*state, moeccl::Collective::allGather, bytes.block), sendbuff,
                    recvbuff, bytes.block, datatype},
                   stream);
  });
}

moecclResult_t moecclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvCount,
                                   moecclDataType_t datatype, moecclRedOp_t op, moecclComm_t comm,
                                   moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclReduceScatter", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes =
        moeccl::bytesOf(recvCount, "recvCount", datatype, communicator.ranks());
    moeccl::requireOp(op, datatype);
    moeccl::requireBuffers(sendbuff, recvbuff, recvCount);
    moeccl::requireApart(
        recvbuff, bytes.block, sendbuff, bytes.buffer,
        moeccl::at(sendbuff, bytes.block, communicator.rank()),
        "sendbuff and recvbuff overlap; in place means recvbuff == sendbuff + rank * recvCount");
    moeccl::requireStream(communicator, stream);
    moeccl::launch(state,
                   {moeccl::choose(*state, moeccl::Collective::reduceScatter, bytes.block),
                    sendbuff, recvbuff, bytes.block, datatype, op},
                   stream);
  });
}

moecclResult_t moecclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                               moecclDataType_t datatype, moecclRedOp_t op, moecclComm_t comm,
                               moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclAllReduce", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes = moeccl::bytesOf(count, "count", datatype, 1);
    moeccl::requireOp(op, datatype);
    moeccl::requireBuffers(sendbuff, recvbuff, count);
    moeccl::requireApart(sendbuff, bytes.block, recvbuff, bytes.block, recvbuff,
                         "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff");
    moeccl::requireStream(communicator, stream);
    moeccl::launch(state,
                   {moeccl::choose(*state, moeccl::Collective::allReduce, bytes.block), sendbuff,
                    recvbuff, bytes.block, datatype, op},
                   stream);
  });
}

// The collectives of a communicator.
#include <algorithm>
#include <limits>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/text.h"

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

// The parts of a v-collective's buffer, by rank.
std::vector<Extent> partsOf(const void* buffer, const char* bufferName, const size_t* counts,
                            const char* countsName, const size_t* displs, const char* displsName,
                            std::size_t elementBytes, int ranks) {
  if (counts == nullptr || displs == nullptr)
    throw Error(moecclInvalidArgument, std::string(counts == nullptr ? countsName : displsName) +
                                           " is NULL; pass one number for each of the " +
                                           std::to_string(ranks) + " ranks");
  const std::size_t most =
      static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / elementBytes;
  std::vector<Extent> parts;
  parts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string index = stringf("[%d]", rank);
    if (counts[rank] > most || displs[rank] > most - counts[rank])
      throw Error(moecclInvalidArgument, countsName + index + " is " +
                                             std::to_string(counts[rank]) + ", " + displsName +
                                             index + " is " + std::to_string(displs[rank]) +
                                             "; together they exceed the address space");
    if (counts[rank] > 0 && buffer == nullptr)
      throw Error(moecclInvalidArgument, std::string(bufferName) + " is NULL while " + countsName +
                                             index + " is " + std::to_string(counts[rank]));
    parts.push_back({displs[rank] * elementBytes, counts[rank] * elementBytes});
  }
  return parts;
}

// Ranks, those with something, by where their parts lie.
std::vector<int> inOrder(const std::vector<Extent>& parts) {
  std::vector<int> order;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].bytes > 0) order.push_back(static_cast<int>(i));
  std::ranges::sort(order, {}, [&](int i) { return parts[i].offset; });
  return order;
}

void requireApart(const void* sendbuff, const std::vector<Extent>& sends, const void* recvbuff,
                  const std::vector<Extent>& recvs) {
  const std::vector<int> order = inOrder(recvs), sendOrder = inOrder(sends);
  for (std::size_t i = 1; i < order.size(); ++i)
    if (recvs[order[i]].offset < recvs[order[i - 1]].end())
      throw Error(moecclInvalidArgument,
                  "the parts of recvbuff for ranks " + std::to_string(order[i - 1]) + " and " +
                      std::to_string(order[i]) + " overlap; see recvDispls and recvCounts");
  // Both lists ascend; the parts of sendbuff may overlap each other.
  std::size_t first = 0;
  for (int i : order) {
    const void* from = static_cast<const std::byte*>(recvbuff) + recvs[i].offset;
    while (first < sendOrder.size() &&
           static_cast<const std::byte*>(sendbuff) + sends[sendOrder[first]].end() <= from)
      ++first;
    for (std::size_t s = first; s < sendOrder.size(); ++s) {
      const Extent& part = sends[sendOrder[s]];
      const void* to = static_cast<const std::byte*>(sendbuff) + part.offset;
      if (to >= static_cast<const std::byte*>(from) + recvs[i].bytes) break;
      if (overlap(to, part.bytes, from, recvs[i].bytes))
        throw Error(moecclInvalidArgument,
                    "the part of sendbuff for rank " + std::to_string(sendOrder[s]) +
                        " overlaps that of recvbuff for rank " + std::to_string(i) +
                        "; all-to-all does not work in place");
    }
  }
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
    communicator.launch({moeccl::choose(*state, moeccl::Collective::allToAll, bytes.block),
                         sendbuff, recvbuff, bytes.block, datatype},
                        stream);
  });
}

moecclResult_t moecclAllToAllv(const void* sendbuff, const size_t* sendCounts,
                               const size_t* sendDispls, void* recvbuff, const size_t* recvCounts,
                               const size_t* recvDispls, moecclDataType_t datatype,
                               moecclComm_t comm, moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclAllToAllv", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const std::size_t element = moeccl::elementBytes(datatype);
    moeccl::Call call{moeccl::chooseForAnySize(*state, moeccl::Collective::allToAllv), sendbuff,
                      recvbuff, 0, datatype};
    call.inputTable = moeccl::partsOf(sendbuff, "sendbuff", sendCounts, "sendCounts", sendDispls,
                                      "sendDispls", element, communicator.ranks());
    call.outputTable = moeccl::partsOf(recvbuff, "recvbuff", recvCounts, "recvCounts", recvDispls,
                                       "recvDispls", element, communicator.ranks());
    moeccl::requireApart(sendbuff, call.inputTable, recvbuff, call.outputTable);
    const int rank = communicator.rank();
    if (sendCounts[rank] != recvCounts[rank])
      throw moeccl::Error(moecclInvalidArgument, "sendCounts[" + std::to_string(rank) + "] is " +
                                                     std::to_string(sendCounts[rank]) +
                                                     ", recvCounts[" + std::to_string(rank) +
                                                     "] is " + std::to_string(recvCounts[rank]) +
                                                     "; what a rank has for itself is both");
    moeccl::requireStream(communicator, stream);
    communicator.launch(std::move(call), stream);
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
    communicator.launch({moeccl::choose(*state, moeccl::Collective::allGather, bytes.block),
                         sendbuff, recvbuff, bytes.block, datatype},
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
    moeccl::requireOp(op);
    moeccl::requireBuffers(sendbuff, recvbuff, recvCount);
    moeccl::requireApart(
        recvbuff, bytes.block, sendbuff, bytes.buffer,
        moeccl::at(sendbuff, bytes.block, communicator.rank()),
        "sendbuff and recvbuff overlap; in place means recvbuff == sendbuff + rank * recvCount");
    moeccl::requireStream(communicator, stream);
    communicator.launch({moeccl::choose(*state, moeccl::Collective::reduceScatter, bytes.block),
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
    moeccl::requireOp(op);
    moeccl::requireBuffers(sendbuff, recvbuff, count);
    moeccl::requireApart(sendbuff, bytes.block, recvbuff, bytes.block, recvbuff,
                         "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff");
    moeccl::requireStream(communicator, stream);
    communicator.launch({moeccl::choose(*state, moeccl::Collective::allReduce, bytes.block),
                         sendbuff, recvbuff, bytes.block, datatype, op},
                        stream);
  });
}

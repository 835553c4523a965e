// The collectives of a communicator whose blocks differ in size.
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "moeccl/moeccl.h"
#include "moeccl/route.h"
#include "src/api/arguments.h"
#include "src/base/text.h"
#include "src/comm/launch.h"

namespace moeccl {
namespace {

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

// Ranks whose parts are not empty, in the order in which these lie in the buffer.
std::vector<int> inOrder(const std::vector<Extent>& parts) {
  std::vector<int> order;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].bytes > 0) order.push_back(static_cast<int>(i));
  std::ranges::sort(order, {}, [&](int i) { return parts[i].offset; });
  return order;
}

void requirePartsApart(const std::vector<Extent>& parts, const char* buffer, const char* see) {
  const std::vector<int> order = inOrder(parts);
  for (std::size_t i = 1; i < order.size(); ++i)
    if (parts[order[i]].offset < parts[order[i - 1]].end())
      throw Error(moecclInvalidArgument, std::string("the parts of ") + buffer + " for ranks " +
                                             std::to_string(order[i - 1]) + " and " +
                                             std::to_string(order[i]) + " overlap; see " + see);
}

void requireApart(const void* sendbuff, const std::vector<Extent>& sends, const void* recvbuff,
                  const std::vector<Extent>& recvs) {
  requirePartsApart(recvs, "recvbuff", "recvDispls and recvCounts");
  const std::vector<int> order = inOrder(recvs), sendOrder = inOrder(sends);
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

// Throws Error where the part at `own` overlaps one of the list. It may be the part of `rank` in
// the list, which is in place.
void requireApart(const void* own, std::size_t bytes, const void* buffer,
                  const std::vector<Extent>& parts, int rank, const char* inPlace) {
  const auto at = [&](int i) { return static_cast<const std::byte*>(buffer) + parts[i].offset; };
  if (bytes == 0 || own == at(rank)) return;
  for (const int i : inOrder(parts)) require(!overlap(own, bytes, at(i), parts[i].bytes), inPlace);
}

// Sets the size of each rank's block, which all ranks know.
void setSizes(CollectiveCall& call, const std::vector<Extent>& parts) {
  for (const Extent& part : parts) call.rankBytes.push_back(part.bytes);
  call.blockBytes = std::reduce(call.rankBytes.begin(), call.rankBytes.end());
}

// The arguments of an all-to-all-v.
struct Parts {
  const void* sendbuff;
  const std::size_t *sendCounts, *sendDispls;
  void* recvbuff;
  const std::size_t *recvCounts, *recvDispls;
  moecclDataType_t datatype;
};

CollectiveCall allToAllv(const Communicator& communicator, const Parts& it) {
  const std::size_t element = elementBytes(it.datatype);
  CollectiveCall call{{it.sendbuff, it.recvbuff, 0, it.datatype}, Collective::allToAllv};
  call.inputTable = partsOf(it.sendbuff, "sendbuff", it.sendCounts, "sendCounts", it.sendDispls,
                            "sendDispls", element, communicator.ranks());
  call.outputTable = partsOf(it.recvbuff, "recvbuff", it.recvCounts, "recvCounts", it.recvDispls,
                             "recvDispls", element, communicator.ranks());
  requireApart(it.sendbuff, call.inputTable, it.recvbuff, call.outputTable);
  const int rank = communicator.rank();
  if (it.sendCounts[rank] != it.recvCounts[rank])
    throw Error(moecclInvalidArgument, "sendCounts[" + std::to_string(rank) + "] is " +
                                           std::to_string(it.sendCounts[rank]) + ", recvCounts[" +
                                           std::to_string(rank) + "] is " +
                                           std::to_string(it.recvCounts[rank]) +
                                           "; what a rank has for itself is both");
  return call;
}

// Throws Error where one side's counts exceed what the caller said; mostTotal 0: it said nothing of
// their sum.
void requireBounded(const std::size_t* counts, const char* name, int ranks, std::size_t mostCount,
                    std::size_t mostTotal) {
  std::size_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (counts[rank] > mostCount)
      throw Error(moecclInvalidArgument, std::string(name) + stringf("[%d]", rank) + " is " +
                                             std::to_string(counts[rank]) +
                                             "; mostCount says that it is at most " +
                                             std::to_string(mostCount));
    total += counts[rank];
  }
  if (mostTotal > 0 && total > mostTotal)
    throw Error(moecclInvalidArgument, std::string(name) + " add up to " + std::to_string(total) +
                                           "; mostTotal says that it is at most " +
                                           std::to_string(mostTotal));
}

// The bytes of so many elements; as many as there can be where that is more.
std::size_t mostBytes(std::size_t count, std::size_t element) {
  return std::min(count, std::numeric_limits<std::size_t>::max() / element) * element;
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclAllToAllvBounded(const void* sendbuff, const size_t* sendCounts,
                                      const size_t* sendDispls, void* recvbuff,
                                      const size_t* recvCounts, const size_t* recvDispls,
                                      size_t mostCount, size_t mostTotal, moecclDataType_t datatype,
                                      moecclComm_t comm, moecclStream_t stream) {
  const auto held = moeccl::hold(comm);
  return moeccl::boundary("moecclAllToAllvBounded", moeccl::lastErrorOf(held), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(held);
    moeccl::CollectiveCall call = moeccl::allToAllv(
        communicator,
        {sendbuff, sendCounts, sendDispls, recvbuff, recvCounts, recvDispls, datatype});
    moeccl::requireBounded(sendCounts, "sendCounts", communicator.ranks(), mostCount, mostTotal);
    moeccl::requireBounded(recvCounts, "recvCounts", communicator.ranks(), mostCount, mostTotal);
    const auto ranks = static_cast<std::size_t>(communicator.ranks());
    const std::size_t element = moeccl::elementBytes(datatype);
    std::size_t meanCount = mostCount;
    if (mostTotal > 0) meanCount = std::min(meanCount, mostTotal / ranks + (mostTotal % ranks > 0));
    call.bounded = true;
    call.blockBytes = moeccl::mostBytes(mostCount, element);
    call.meanBytes = moeccl::mostBytes(meanCount, element);
    moeccl::launch(held.comm, held.communicator, {std::move(call)}, stream);
  });
}

moecclResult_t moecclAllToAllv(const void* sendbuff, const size_t* sendCounts,
                               const size_t* sendDispls, void* recvbuff, const size_t* recvCounts,
                               const size_t* recvDispls, moecclDataType_t datatype,
                               moecclComm_t comm, moecclStream_t stream) {
  const auto held = moeccl::hold(comm);
  return moeccl::boundary("moecclAllToAllv", moeccl::lastErrorOf(held), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(held);
    moeccl::CollectiveCall call = moeccl::allToAllv(
        communicator,
        {sendbuff, sendCounts, sendDispls, recvbuff, recvCounts, recvDispls, datatype});
    moeccl::launch(held.comm, held.communicator, {std::move(call)}, stream);
  });
}

moecclResult_t moecclAllGatherv(const void* sendbuff, size_t sendCount, void* recvbuff,
                                const size_t* recvCounts, const size_t* recvDispls,
                                moecclDataType_t datatype, moecclComm_t comm,
                                moecclStream_t stream) {
  const auto held = moeccl::hold(comm);
  return moeccl::boundary("moecclAllGatherv", moeccl::lastErrorOf(held), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(held);
    const std::size_t element = moeccl::elementBytes(datatype);
    const int rank = communicator.rank();
    moeccl::CollectiveCall call{{sendbuff, recvbuff, 0, datatype}, moeccl::Collective::allGatherv};
    call.outputTable = moeccl::partsOf(recvbuff, "recvbuff", recvCounts, "recvCounts", recvDispls,
                                       "recvDispls", element, communicator.ranks());
    if (sendCount != recvCounts[rank])
      throw moeccl::Error(moecclInvalidArgument, "sendCount is " + std::to_string(sendCount) +
                                                     ", recvCounts[" + std::to_string(rank) +
                                                     "] is " + std::to_string(recvCounts[rank]) +
                                                     "; what this rank sends is both");
    moeccl::require(sendbuff != nullptr || sendCount == 0,
                    "sendbuff is NULL while there is something to send");
    call.inputTable = {{0, sendCount * element}};
    moeccl::requirePartsApart(call.outputTable, "recvbuff", "recvDispls and recvCounts");
    moeccl::requireApart(sendbuff, sendCount * element, recvbuff, call.outputTable, rank,
                         "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff + "
                         "recvDispls[rank]");
    moeccl::setSizes(call, call.outputTable);
    moeccl::launch(held.comm, held.communicator, {std::move(call)}, stream);
  });
}

moecclResult_t moecclReduceScatterv(const void* sendbuff, const size_t* sendCounts,
                                    const size_t* sendDispls, void* recvbuff,
                                    moecclDataType_t datatype, moecclRedOp_t op, moecclComm_t comm,
                                    moecclStream_t stream) {
  const auto held = moeccl::hold(comm);
  return moeccl::boundary("moecclReduceScatterv", moeccl::lastErrorOf(held), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(held);
    const std::size_t element = moeccl::elementBytes(datatype);
    const int rank = communicator.rank();
    moeccl::requireOp(op, datatype);
    moeccl::CollectiveCall call{{sendbuff, recvbuff, 0, datatype},
                                moeccl::Collective::reduceScatterv};
    call.op = op;
    call.inputTable = moeccl::partsOf(sendbuff, "sendbuff", sendCounts, "sendCounts", sendDispls,
                                      "sendDispls", element, communicator.ranks());
    const std::size_t own = sendCounts[rank] * element;
    moeccl::require(recvbuff != nullptr || own == 0,
                    "recvbuff is NULL while there is something to receive");
    call.outputTable = {{0, own}};
    moeccl::requirePartsApart(call.inputTable, "sendbuff", "sendDispls and sendCounts");
    moeccl::requireApart(recvbuff, own, sendbuff, call.inputTable, rank,
                         "sendbuff and recvbuff overlap; in place means recvbuff == sendbuff + "
                         "sendDispls[rank]");
    moeccl::setSizes(call, call.inputTable);
    moeccl::launch(held.comm, held.communicator, {std::move(call)}, stream);
  });
}

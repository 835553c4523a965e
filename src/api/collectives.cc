#include <cstdint>
#include <limits>

#include "kernels/reduce.h"
#include "moeccl/moeccl.h"
#include "src/api/handles.h"

namespace moeccl {
namespace {

struct Bytes {
  std::size_t block;   // one rank's part
  std::size_t buffer;  // all ranks' parts
};

Bytes bytesOf(std::size_t count, const char* countName, moecclDataType_t datatype, int ranks) {
  const std::size_t size = sizeOf(datatype);
  if (size == 0)
    throw Error(moecclInvalidArgument, "datatype is " + std::to_string(static_cast<int>(datatype)) +
                                           "; it must be one of moecclDataType_t");
  const std::size_t most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) /
                           size / static_cast<std::size_t>(ranks);
  if (count > most)
    throw Error(moecclInvalidArgument, std::string(countName) + " is " + std::to_string(count) +
                                           "; " + std::to_string(ranks) +
                                           " blocks of it exceed the address space");
  return {count * size, count * size * static_cast<std::size_t>(ranks)};
}

bool overlap(const void* a, std::size_t aBytes, const void* b, std::size_t bBytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + bBytes && y < x + aBytes;
}

void requireBuffers(const void* sendbuff, const void* recvbuff, std::size_t count) {
  if (count == 0) return;
  require(sendbuff != nullptr, "sendbuff is NULL while there is something to send");
  require(recvbuff != nullptr, "recvbuff is NULL while there is something to receive");
}

void launch(const Call& call, Communicator& communicator, moecclStream_t stream) {
  if (stream == nullptr)
    communicator.run(call);
  else
    streamOf(stream)->enqueue(communicator, call);
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
    moeccl::launch({moeccl::Collective::allToAll, sendbuff, recvbuff, bytes.block, datatype},
                   communicator, stream);
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
    const void* own = static_cast<const std::byte*>(recvbuff) +
                      bytes.block * static_cast<std::size_t>(communicator.rank());
    moeccl::require(
        sendbuff == own || !moeccl::overlap(sendbuff, bytes.block, recvbuff, bytes.buffer),
        "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff + rank * sendCount");
    moeccl::launch({moeccl::Collective::allGather, sendbuff, recvbuff, bytes.block, datatype},
                   communicator, stream);
  });
}

// The collectives of a communicator in which one rank, the root, has all of the input or gets all
// of the output.
#include <utility>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/api/group.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

void requireRoot(int root, int ranks) {
  if (root < 0 || root >= ranks)
    throw Error(moecclInvalidArgument,
                stringf("root is %d; it must be a rank, 0 to %d", root, ranks - 1));
}

// Which parts of its arguments a call uses on this rank.
struct Use {
  std::size_t sent;      // bytes of sendbuff
  std::size_t received;  // bytes of recvbuff
  bool inPlace;
  const char* rule;  // what in place means, for people
};

// The root has the same plans as rank 0 would, but for names: so algorithms are chosen as for rank
// 0.
void launchRooted(const HeldComm& state, Collective collective, const Use& use, Call call, int root,
                  moecclStream_t stream) {
  if (use.sent > 0)
    require(call.input != nullptr, "sendbuff is NULL while there is something to send");
  if (use.received > 0)
    require(call.output != nullptr, "recvbuff is NULL while there is something to receive");
  if (use.sent > 0 && use.received > 0)
    require(use.inPlace || !overlap(call.input, use.sent, call.output, use.received), use.rule);
  requireStream(*state->communicator, stream);
  call.choice = choose(*state, collective, call.blockBytes);
  call.choice.parameters.root = root;
  launch(state, std::move(call), stream);
}

const void* blockOf(const void* buffer, std::size_t block, int index) {
  return buffer == nullptr
             ? nullptr
             : static_cast<const std::byte*>(buffer) + block * static_cast<std::size_t>(index);
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                               moecclDataType_t datatype, int root, moecclComm_t comm,
                               moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclBroadcast", moeccl::lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const std::size_t bytes = moeccl::bytesOf(count, "count", datatype, 1).block;
    moeccl::requireRoot(root, communicator.ranks());
    moeccl::launchRooted(state, moeccl::Collective::broadcast,
                         {communicator.rank() == root ? bytes : 0, bytes, sendbuff == recvbuff,
                          "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff"},
                         {{}, sendbuff, recvbuff, bytes, datatype}, root, stream);
  });
}

moecclResult_t moecclReduce(const void* sendbuff, void* recvbuff, size_t count,
                            moecclDataType_t datatype, moecclRedOp_t op, int root,
                            moecclComm_t comm, moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclReduce", moeccl::lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const std::size_t bytes = moeccl::bytesOf(count, "count", datatype, 1).block;
    moeccl::requireOp(op, datatype);
    moeccl::requireRoot(root, communicator.ranks());
    moeccl::launchRooted(state, moeccl::Collective::reduce,
                         {bytes, communicator.rank() == root ? bytes : 0, sendbuff == recvbuff,
                          "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff"},
                         {{}, sendbuff, recvbuff, bytes, datatype, op}, root, stream);
  });
}

moecclResult_t moecclGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                            moecclDataType_t datatype, int root, moecclComm_t comm,
                            moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclGather", moeccl::lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes =
        moeccl::bytesOf(sendCount, "sendCount", datatype, communicator.ranks());
    moeccl::requireRoot(root, communicator.ranks());
    moeccl::launchRooted(
        state, moeccl::Collective::gather,
        {bytes.block, communicator.rank() == root ? bytes.buffer : 0,
         sendbuff == moeccl::blockOf(recvbuff, bytes.block, root),
         "sendbuff and recvbuff overlap; in place means sendbuff == recvbuff + root * sendCount"},
        {{}, sendbuff, recvbuff, bytes.block, datatype}, root, stream);
  });
}

moecclResult_t moecclScatter(const void* sendbuff, void* recvbuff, size_t recvCount,
                             moecclDataType_t datatype, int root, moecclComm_t comm,
                             moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclScatter", moeccl::lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    const moeccl::Bytes bytes =
        moeccl::bytesOf(recvCount, "recvCount", datatype, communicator.ranks());
    moeccl::requireRoot(root, communicator.ranks());
    moeccl::launchRooted(
        state, moeccl::Collective::scatter,
        {communicator.rank() == root ? bytes.buffer : 0, bytes.block,
         recvbuff == moeccl::blockOf(sendbuff, bytes.block, root),
         "sendbuff and recvbuff overlap; in place means recvbuff == sendbuff + root * recvCount"},
        {{}, sendbuff, recvbuff, bytes.block, datatype}, root, stream);
  });
}

// An all-gather of nothing: nobody has all messages before everybody has sent.
moecclResult_t moecclBarrier(moecclComm_t comm, moecclStream_t stream) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclBarrier", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    moeccl::requireStream(communicator, stream);
    moeccl::launch(state,
                   {moeccl::choose(*state, moeccl::Collective::allGather, 0), nullptr, nullptr, 0},
                   stream);
  });
}

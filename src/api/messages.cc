// Groups of calls, and messages from one rank to another.
#include <memory>
#include <string>
#include <utility>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/base/text.h"
#include "src/comm/group.h"
#include "src/comm/launch.h"

namespace moeccl {
namespace {

struct MessageArguments {
  const char* function;
  bool isSend;
  void* buffer;
  std::size_t count;
  moecclDataType_t datatype;
  int peer;
  std::int32_t tag;
  int* source;  // nullptr: `peer` alone; else of any rank
};

moecclResult_t message(const MessageArguments& given, moecclComm_t comm, moecclStream_t stream) {
  const auto held = hold(comm);
  return boundary(given.function, lastErrorOf(held), [&] {
    const Communicator& communicator = communicatorOf(held);
    const std::size_t bytes = bytesOf(given.count, "count", given.datatype, 1).block;
    const bool any = given.source != nullptr;
    if (!any && (given.peer < 0 || given.peer >= communicator.ranks()))
      throw Error(moecclInvalidArgument, stringf("peer is %d; it must be a rank, 0 to %d",
                                                 given.peer, communicator.ranks() - 1));
    require(given.buffer != nullptr || bytes == 0,
            given.isSend ? "sendbuff is NULL while there is something to send"
                         : "recvbuff is NULL while there is something to receive");
    if (any && communicator.device())
      throw Error(moecclInvalidUsage,
                  "comm is on GPUs, where a receive must name its sender; NCCL offers no other");
    if (any && communicator.ranks() == 1)
      throw Error(moecclInvalidUsage, "comm has one rank; no other can send it anything");
    MessagesCall call;
    call.messages = {{given.isSend, any ? kAnySource : given.peer,
                      static_cast<std::uint32_t>(given.tag), static_cast<std::byte*>(given.buffer),
                      bytes, given.source}};
    launch(held.comm, held.communicator, {std::move(call)}, stream);
  });
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclGroupStart(void) {
  moeccl::Group::ofThread().start();
  return moecclSuccess;
}

moecclResult_t moecclGroupEnd(void) {
  moeccl::Group& group = moeccl::Group::ofThread();
  // If all calls of a group are of one communicator, users look for the group's error there.
  const std::shared_ptr<moeccl::Communicator> only = group.communicator();
  return moeccl::boundary("moecclGroupEnd", only == nullptr ? nullptr : &only->lastError(),
                          [&] { group.end(); });
}

moecclResult_t moecclSend(const void* sendbuff, size_t count, moecclDataType_t datatype, int peer,
                          int32_t tag, moecclComm_t comm, moecclStream_t stream) {
  return moeccl::message(
      {"moecclSend", true, const_cast<void*>(sendbuff), count, datatype, peer, tag, nullptr}, comm,
      stream);
}

moecclResult_t moecclRecv(void* recvbuff, size_t count, moecclDataType_t datatype, int peer,
                          int32_t tag, moecclComm_t comm, moecclStream_t stream) {
  return moeccl::message({"moecclRecv", false, recvbuff, count, datatype, peer, tag, nullptr}, comm,
                         stream);
}

moecclResult_t moecclRecvAny(void* recvbuff, size_t count, moecclDataType_t datatype, int32_t tag,
                             int* source, moecclComm_t comm, moecclStream_t stream) {
  if (source == nullptr)
    return moeccl::boundary("moecclRecvAny", nullptr, [] {
      moeccl::require(false, "source is NULL; pass where the sender's rank goes");
    });
  return moeccl::message({"moecclRecvAny", false, recvbuff, count, datatype, 0, tag, source}, comm,
                         stream);
}

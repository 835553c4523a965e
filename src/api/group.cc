// Starts calls: at once outside of a group, and all together at the end of one. Point-to-point
// functions are here too: all messages that a group has on one communicator and stream become one
// call.
#include "src/api/group.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/clock.h"
#include "src/comm/call_log.h"

namespace moeccl {
namespace {

// No call of a group ends before all have begun, and so many can be unfinished.
constexpr std::size_t kMostCalls = CallLog::kMost;

struct Noted {
  moecclComm_t comm;
  std::shared_ptr<CommState> state;
  Call call;
  moecclStream_t stream;
};

struct Group {
  int depth = 0;
  std::vector<Noted> calls;
};

Group& group() {
  static thread_local Group instance;
  return instance;
}

void requireCounterparts(const Communicator& communicator, const std::vector<Message>& messages) {
  std::vector<const Message*> sends, receives;
  for (const Message& message : messages)
    if (message.peer == communicator.rank())
      (message.isSend ? sends : receives).push_back(&message);
  const auto byTag = [](const Message* a, const Message* b) { return a->tag < b->tag; };
  std::ranges::stable_sort(sends, byTag);
  std::ranges::stable_sort(receives, byTag);
  const bool alike =
      std::ranges::equal(sends, receives, [](const Message* sent, const Message* received) {
        return sent->tag == received->tag && sent->bytes == received->bytes;
      });
  if (!alike)
    throw Error(moecclInvalidArgument,
                stringf("rank %d sends to itself; the group must have a receive of the same tag "
                        "and size for each such send",
                        communicator.rank()));
}

// Messages of one communicator and stream become one call.
std::vector<Noted> merged(std::vector<Noted> calls) {
  std::vector<Noted> all;
  for (Noted& each : calls) {
    const auto known = std::ranges::find_if(all, [&](const Noted& other) {
      return !each.call.isCollective() && !other.call.isCollective() && other.state == each.state &&
             other.stream == each.stream;
    });
    if (known == all.end())
      all.push_back(std::move(each));
    else
      known->call.messages.push_back(each.call.messages[0]);
  }
  for (const Noted& each : all)
    if (!each.call.isCollective())
      requireCounterparts(*each.state->communicator, each.call.messages);
  return all;
}

// Calls that run at once: those on one stream, or those of relatives on no stream.
struct Together {
  moecclStream_t stream;
  std::shared_ptr<Domain> domain;
  std::vector<Stream::Queued> calls;
};

// Sorts the calls of host communicators into batches, and leaves those of GPUs alone. Each call
// takes its number here, in the order of the calls, which is the same on all ranks.
std::vector<Together> batches(std::vector<Noted>& calls) {
  const auto hostOf = [](const Noted& each) {
    return dynamic_cast<HostCommunicator*>(each.state->communicator.get());
  };
  for (const Noted& each : calls)
    if (HostCommunicator* const host = hostOf(each); host != nullptr && each.stream != nullptr)
      streamOf(each.stream)->requireRelative(*host);
  std::vector<Together> all;
  try {
    for (Noted& each : calls) {
      HostCommunicator* const host = hostOf(each);
      if (host == nullptr) continue;
      const std::shared_ptr<Domain> domain = host->sharedDomain();
      auto batch = std::ranges::find_if(all, [&](const Together& together) {
        return together.stream == each.stream && together.domain == domain;
      });
      if (batch == all.end()) batch = all.insert(all.end(), {each.stream, domain, {}});
      each.call.timeoutMs = host->callTimeoutMs();
      const std::uint32_t number = host->takeNumber(each.call);
      batch->calls.push_back({host, std::move(each.call), number});
    }
  } catch (const Error& error) {
    for (const Together& batch : all)
      for (const Stream::Queued& each : batch.calls) each.communicator->giveUp(error.what());
    throw;
  }
  return all;
}

// A communicator may have been destroyed since, or the group be a parent process's.
void requireLive(const Noted& each) {
  const HeldComm held = hold(each.comm);
  requireLive(HandleKind::communicator, held.handle);
  // A newer one has its address.
  if (held.state != each.state) requireLive(HandleKind::communicator, HandleState::unknown);
}

void launchTogether(std::vector<Noted> calls) {
  for (const Noted& each : calls) requireLive(each);
  calls = merged(std::move(calls));
  if (calls.size() == 1) {
    Noted& only = calls[0];
    requireStream(*only.state->communicator, only.stream);
    return only.state->communicator->launch(std::move(only.call), only.stream);
  }
  std::vector<std::unique_ptr<Stream>> waited;
  for (Together& batch : batches(calls)) {
    Stream* stream = static_cast<Stream*>(batch.stream);
    if (stream == nullptr) {
      waited.push_back(std::make_unique<Stream>(batch.domain));
      stream = waited.back().get();
    }
    stream->enqueueTogether(std::move(batch.calls));
  }
  for (Noted& each : calls)
    if (each.state->communicator->device())
      each.state->communicator->launch(std::move(each.call), each.stream);
  for (const std::unique_ptr<Stream>& stream : waited) stream->synchronize();
}

// If all calls of a group are of one communicator, its last error: users look for the group's error
// there. Otherwise nullptr.
std::string* sharedLastErrorOf(const std::vector<Noted>& calls) {
  for (const Noted& each : calls)
    if (each.state != calls[0].state) return nullptr;
  return calls.empty() ? nullptr : &calls[0].state->lastError;
}

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
  const auto state = hold(comm);
  return boundary(given.function, lastErrorOf(state), [&] {
    Communicator& communicator = communicatorOf(state);
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
    requireStream(communicator, stream);
    Call call;
    call.messages = {{given.isSend, any ? kAnySource : given.peer,
                      static_cast<std::uint32_t>(given.tag), static_cast<std::byte*>(given.buffer),
                      bytes, given.source}};
    if (group().depth == 0) requireCounterparts(communicator, call.messages);
    launch(state, std::move(call), stream);
  });
}

// Starts a call outside of a group. If the caller waits for it on a host and warnings are on, its
// time is compared with the profile's.
void launchAlone(CommState& state, Call call, moecclStream_t stream) {
  Communicator& communicator = *state.communicator;
  std::optional<double> predicted;
  if (stream == nullptr && checksProfiles() && call.choice.algorithm != nullptr &&
      call.inputTable.empty() && !communicator.device())
    predicted = state.model->measured(call.choice, call.blockBytes);
  if (!predicted) return communicator.launch(std::move(call), stream);
  const TimePoint begun = Clock::now();
  communicator.launch(std::move(call), stream);
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  if (const std::string warning = state.profileCheck.add(*predicted, seconds); !warning.empty())
    log(LogLevel::warn, {communicator.rank(), communicator.ranks()}, "%s", warning.c_str());
}

}  // namespace

void launch(const HeldComm& comm, Call call, moecclStream_t stream) {
  Group& open = group();
  if (open.depth == 0) return launchAlone(*comm, std::move(call), stream);
  if (call.isCollective() && std::ranges::count_if(open.calls, [&](const Noted& each) {
                               return each.state == comm.state && each.call.isCollective();
                             }) == kMostCalls)
    throw Error(
        moecclInvalidUsage,
        stringf("a group has at most %zu collectives of one communicator; end it, and start "
                "another",
                kMostCalls));
  open.calls.push_back({comm.comm, comm.state, std::move(call), stream});
}

}  // namespace moeccl

moecclResult_t moecclGroupStart(void) {
  ++moeccl::group().depth;
  return moecclSuccess;
}

moecclResult_t moecclGroupEnd(void) {
  moeccl::Group& open = moeccl::group();
  std::vector<moeccl::Noted> calls;
  if (open.depth == 1) calls.swap(open.calls);
  std::string* const lastError = moeccl::sharedLastErrorOf(calls);
  const std::vector<std::shared_ptr<moeccl::CommState>> kept = [&] {
    std::vector<std::shared_ptr<moeccl::CommState>> all;
    for (const moeccl::Noted& each : calls) all.push_back(each.state);
    return all;
  }();
  return moeccl::boundary("moecclGroupEnd", lastError, [&] {
    if (open.depth == 0)
      throw moeccl::Error(moecclInvalidUsage, "no group is open; call moecclGroupStart first");
    if (--open.depth > 0) return;
    if (!calls.empty()) moeccl::launchTogether(std::move(calls));
  });
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

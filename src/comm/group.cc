// Sorts the calls of a group, and starts them together. All messages that a group has on one
// communicator and stream become one call.
#include "src/comm/group.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/live_handles.h"
#include "src/base/text.h"
#include "src/comm/call_log.h"
#include "src/comm/launch.h"
#include "src/comm/stream.h"

namespace moeccl {
namespace {

// No call of a group ends before all have begun, and so many can be unfinished.
constexpr std::size_t kMostCalls = CallLog::kMost;

// Messages of one communicator and stream become one call.
std::vector<GroupedCall> merged(std::vector<GroupedCall> calls) {
  std::vector<GroupedCall> all;
  const auto messagesOf = [](GroupedCall& each) {
    return std::get_if<MessagesCall>(&each.call.what);
  };
  for (GroupedCall& each : calls) {
    const auto known = std::ranges::find_if(all, [&](GroupedCall& other) {
      return messagesOf(each) != nullptr && messagesOf(other) != nullptr &&
             other.communicator == each.communicator && other.stream == each.stream;
    });
    if (known == all.end())
      all.push_back(std::move(each));
    else
      messagesOf(*known)->messages.push_back(messagesOf(each)->messages[0]);
  }
  for (const GroupedCall& each : all)
    if (const MessagesCall* const messages = each.call.messages(); messages != nullptr)
      requireCounterparts(*each.communicator, messages->messages);
  return all;
}

// Calls that run at once: those on one stream, or those of relatives on no stream.
struct Batch {
  Stream* stream;
  std::shared_ptr<Domain> domain;
  std::vector<Stream::Queued> calls;
};

// Sorts the calls of host communicators into batches, and leaves those of GPUs alone. Each call
// takes its number here, in the order of the calls, which is the same on all ranks.
std::vector<Batch> batches(std::vector<GroupedCall>& calls) {
  const auto hostOf = [](const GroupedCall& each) {
    return dynamic_cast<HostCommunicator*>(each.communicator.get());
  };
  for (const GroupedCall& each : calls)
    if (HostCommunicator* const host = hostOf(each); host != nullptr && each.stream != nullptr)
      streamOf(each.stream)->requireRelative(*host);
  std::vector<Batch> all;
  try {
    for (GroupedCall& each : calls) {
      HostCommunicator* const host = hostOf(each);
      if (host == nullptr) continue;
      Stream* const stream = each.stream == nullptr ? nullptr : streamOf(each.stream);
      const std::shared_ptr<Domain> domain = host->sharedDomain();
      auto batch = std::ranges::find_if(all, [&](const Batch& known) {
        return known.stream == stream && known.domain == domain;
      });
      if (batch == all.end()) batch = all.insert(all.end(), {stream, domain, {}});
      each.call.timeoutMs = host->callTimeoutMs();
      const std::uint32_t number = host->takeNumber(each.call);
      batch->calls.push_back({host, std::move(each.call), number});
    }
  } catch (const Error& error) {
    for (const Batch& batch : all)
      for (const Stream::Queued& each : batch.calls) each.communicator->giveUp(error.what());
    throw;
  }
  return all;
}

// A communicator may have been destroyed since, or the group be a parent process's.
void requireLive(const GroupedCall& each) {
  const KnownHandle known = findHandle(HandleKind::communicator, each.comm);
  requireLive(HandleKind::communicator, known.state);
  // A newer one has its address.
  if (known.object != each.communicator)
    requireLive(HandleKind::communicator, HandleState::unknown);
}

void launchTogether(std::vector<GroupedCall> calls) {
  for (const GroupedCall& each : calls) requireLive(each);
  calls = merged(std::move(calls));
  if (calls.size() == 1) {
    GroupedCall& only = calls[0];
    requireStream(*only.communicator, only.stream);
    return only.communicator->launch(std::move(only.call), only.stream);
  }
  std::vector<std::unique_ptr<Stream>> waited;
  for (Batch& batch : batches(calls)) {
    Stream* stream = batch.stream;
    if (stream == nullptr) {
      waited.push_back(std::make_unique<Stream>(batch.domain));
      stream = waited.back().get();
    }
    stream->enqueueTogether(std::move(batch.calls));
  }
  for (GroupedCall& each : calls)
    if (each.communicator->device()) each.communicator->launch(std::move(each.call), each.stream);
  for (const std::unique_ptr<Stream>& stream : waited) stream->synchronize();
}

}  // namespace

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

Group& Group::ofThread() {
  static thread_local Group instance;
  return instance;
}

void Group::add(GroupedCall call) {
  const auto isAnother = [&](const GroupedCall& each) {
    return each.communicator == call.communicator && each.call.planned() != nullptr;
  };
  if (call.call.planned() != nullptr && std::ranges::count_if(calls_, isAnother) == kMostCalls)
    throw Error(
        moecclInvalidUsage,
        stringf("a group has at most %zu collectives of one communicator; end it, and start "
                "another",
                kMostCalls));
  calls_.push_back(std::move(call));
}

void Group::end() {
  if (depth_ == 0) throw Error(moecclInvalidUsage, "no group is open; call moecclGroupStart first");
  if (--depth_ > 0) return;
  std::vector<GroupedCall> calls = std::exchange(calls_, {});
  if (!calls.empty()) launchTogether(std::move(calls));
}

std::shared_ptr<Communicator> Group::communicator() const {
  if (calls_.empty()) return nullptr;
  const std::shared_ptr<Communicator>& first = calls_[0].communicator;
  const bool alone = std::ranges::all_of(
      calls_, [&](const GroupedCall& each) { return each.communicator == first; });
  return alone ? first : nullptr;
}

}  // namespace moeccl

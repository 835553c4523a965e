// Chooses, then starts a call by itself or adds it to the thread's group. A call that the caller
// waits for is timed, while somebody wants to hear that the profile is off.
#include "src/comm/launch.h"

#include <optional>
#include <utility>

#include "src/base/live_handles.h"
#include "src/bootstrap/clock.h"
#include "src/comm/group.h"

namespace moeccl {
namespace {

// Seconds by the profile for a call that the caller waits for on a host; nothing where nobody wants
// to know.
std::optional<double> predictedFor(Communicator& communicator, const Call& call,
                                   moecclStream_t stream) {
  const CollectiveCall* const it = call.collective();
  if (stream != nullptr || !checksProfiles() || it == nullptr || !it->inputTable.empty() ||
      communicator.device())
    return std::nullopt;
  return communicator.model().measured(it->choice, it->blockBytes);
}

void launchAlone(Communicator& communicator, Call call, moecclStream_t stream) {
  const std::optional<double> predicted = predictedFor(communicator, call, stream);
  if (!predicted) return communicator.launch(std::move(call), stream);
  const TimePoint begun = Clock::now();
  communicator.launch(std::move(call), stream);
  communicator.checkProfile(*predicted, secondsSince(begun));
}

}  // namespace

void requireStream(const Communicator& communicator, moecclStream_t stream) {
  // On GPUs it is CUDA's.
  if (stream != nullptr && !communicator.device()) requireLive(HandleKind::stream, stream);
}

void launch(moecclComm_t comm, const std::shared_ptr<Communicator>& communicator, Call call,
            moecclStream_t stream) {
  requireStream(*communicator, stream);
  if (auto* const collective = std::get_if<CollectiveCall>(&call.what); collective != nullptr)
    communicator->decide(*collective);
  if (Group& group = Group::ofThread(); group.isOpen())
    return group.add({comm, communicator, std::move(call), stream});
  if (const MessagesCall* const alone = call.messages(); alone != nullptr)
    requireCounterparts(*communicator, alone->messages);
  launchAlone(*communicator, std::move(call), stream);
}

}  // namespace moeccl

// The texts and notices of failed communicators.
#include "src/comm/failure.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {

void Failure::throwIfAny() const {
  if (any()) throw Error(result, text);
}

bool Failure::note(moecclResult_t error, std::string_view errorText) {
  if (any()) return false;
  result = error;
  text = errorText;
  return true;
}

std::optional<int> rankAmong(std::span<const int> members, int ofJob) {
  const auto at = std::ranges::find(members, ofJob);
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

Notice noticeOf(std::uint32_t communicator, moecclResult_t result, std::string_view text) {
  Notice notice;
  notice.result = result;
  notice.comm = communicator;
  text.copy(notice.text, sizeof notice.text - 1);
  return notice;
}

std::string deathText(int rank, const Watch& watch, const Loss& loss) {
  return stringf("rank %d on %s is dead: %s", rank, watch.hostOf(loss.rank).c_str(),
                 loss.why.c_str());
}

std::string differentCalls(int rank, std::string_view call, int other, std::string_view othersCall,
                           std::string_view more) {
  std::string text = "rank " + std::to_string(rank) + " called ";
  text.append(call).append(", rank ").append(std::to_string(other)).append(" called ");
  text.append(othersCall).append(more);
  return text + "; all ranks must make the same calls, in the same order";
}

}  // namespace moeccl

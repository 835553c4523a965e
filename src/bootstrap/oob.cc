// All-gathers by the callback of a launcher. Exchanges bytes, texts and errors over any all-gather.
#include "src/bootstrap/oob.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/base/text.h"

namespace moeccl {

CallbackOob::CallbackOob(const moecclOob_t& oob, int ranks, int rank)
    : oob_(oob), ranks_(ranks), rank_(rank) {
  if (oob.allgather == nullptr)
    throw Error(moecclInvalidArgument,
                "oob.allgather is NULL; it must be the launcher's all-gather");
}

void CallbackOob::allgather(const void* send, void* recv, std::size_t bytes) {
  const int code = oob_.allgather(send, recv, bytes, oob_.context);
  if (code != 0)
    throw Error(moecclSystemError,
                stringf("oob.allgather returned %d on rank %d of %d (%zu bytes per rank)", code,
                        rank_, ranks_, bytes));
  if (bytes > 0 &&
      std::memcmp(static_cast<const std::byte*>(recv) + bytes * rank_, send, bytes) != 0)
    throw Error(moecclInvalidUsage,
                stringf("oob.allgather did not put the data of rank %d at its place in recv (%d * "
                        "%zu bytes): do the launcher's rank and size equal rank and nRanks?",
                        rank_, rank_, bytes));
}

std::vector<std::vector<std::byte>> exchangeBytes(Oob& oob, std::span<const std::byte> mine) {
  const std::vector<std::uint64_t> sizes =
      exchangeValue(oob, static_cast<std::uint64_t>(mine.size()));
  const std::size_t room = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> all(sizes.size());
  if (room == 0) return all;
  std::vector<std::byte> padded(room), gathered(room * sizes.size());
  std::copy(mine.begin(), mine.end(), padded.begin());
  oob.allgather(padded.data(), gathered.data(), room);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::byte* begin = gathered.data() + rank * room;
    all[rank].assign(begin, begin + sizes[rank]);
  }
  return all;
}

std::vector<std::string> exchangeText(Oob& oob, std::string_view mine) {
  std::vector<std::string> all;
  for (const std::vector<std::byte>& bytes : exchangeBytes(oob, std::as_bytes(std::span(mine))))
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return all;
}

void agree(Oob& oob, const std::optional<Error>& mine) {
  struct Status {
    std::int32_t failed;
    char text[508];
  };
  Status status{};
  if (mine) {
    status.failed = 1;
    std::strncpy(status.text, mine->what(), sizeof status.text - 1);
  }
  const std::vector<Status> all = exchangeValue(oob, status);
  if (mine) throw Error(*mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].failed != 0)
      throw Error(moecclRemoteError, stringf("rank %zu failed: %.*s", rank,
                                             static_cast<int>(sizeof status.text), all[rank].text));
}

}  // namespace moeccl

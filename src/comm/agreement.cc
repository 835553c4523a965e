// Ranks exchange their settings as lines of text, or hashes of these first.
#include "src/comm/agreement.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "src/base/error.h"

namespace moeccl {
namespace {

struct SplitRequest {
  std::int32_t color, key, wrong;
};

}  // namespace

void requireAgreement(Oob& oob, const Settings& settings) {
  const std::vector<std::string> records = exchangeText(oob, comparable(settings, oob.ranks()));
  if (const std::string text = disagreement(records); !text.empty())
    throw Error(moecclInvalidUsage, text);
}

void requireAgreementAtOnce(Oob& oob, const Settings& settings) {
  const std::size_t mine = std::hash<std::string>()(comparable(settings, oob.ranks()));
  const std::vector<std::size_t> all = exchangeValue(oob, mine);
  if (std::ranges::count(all, mine) != oob.ranks()) requireAgreement(oob, settings);
}

SplitGroup agreeOnSplit(Oob& oob, const Topology& parent, int color, int key,
                        const Settings& settings, const std::optional<Error>& wrong) {
  const std::vector<SplitRequest> requests =
      exchangeValue(oob, SplitRequest{color, key, wrong.has_value()});
  if (!std::ranges::all_of(requests, [](const SplitRequest& each) { return each.wrong == 0; }))
    agree(oob, wrong);
  SplitGroup group;
  for (int rank = 0; rank < oob.ranks(); ++rank)
    if (color != MOECCL_SPLIT_NOCOLOR && requests[rank].color == color)
      group.members.push_back(rank);
  std::ranges::stable_sort(group.members, {}, [&](int rank) { return requests[rank].key; });

  const std::vector<std::string> records =
      exchangeText(oob, comparable(settings, static_cast<int>(group.members.size())));
  std::vector<std::string> ours;
  for (int rank : group.members) {
    if (rank == oob.rank()) group.rank = static_cast<int>(ours.size());
    ours.push_back(records[rank]);
    group.nodes.push_back(parent.nodeOf(rank));
  }
  group.disagreement = disagreement(ours);
  return group;
}

void requireSameText(Communicator& communicator, std::string_view text) {
  const std::size_t mine = std::hash<std::string_view>{}(text);
  std::vector<std::size_t> all(static_cast<std::size_t>(communicator.ranks()));
  communicator.allgather(&mine, all.data(), sizeof mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw Error(moecclInvalidUsage, "ranks came with different texts: that of rank " +
                                          std::to_string(rank) + " is not that of rank 0");
}

}  // namespace moeccl

// Ranks of experts are told how many choices want each expert, and say how many they have room for.
#include "src/route/row_room.h"

#include <algorithm>
#include <span>

#include "src/route/tells.h"

namespace moeccl {
namespace {

// What each gets of `room`, of which it takes multiples of `unit`: none more than it wants, and
// those that do not get all equally much, but for a unit each that the first of them get more.
std::vector<std::int64_t> sharesOf(std::span<const std::int64_t> wants, std::int64_t room,
                                   std::int64_t unit) {
  std::int64_t units = room / unit;
  const auto unitsOf = [&](std::int64_t rows) { return (rows + unit - 1) / unit; };
  const auto taken = [&](std::int64_t most) {
    std::int64_t sum = 0;
    for (const std::int64_t rows : wants) sum += std::min(unitsOf(rows), most);
    return sum;
  };
  // The most units that everybody can have: all of them fit with `least`, not with `beyond`.
  std::int64_t least = 0, beyond = units + 1;
  while (beyond - least > 1) {
    const std::int64_t most = least + (beyond - least) / 2;
    (taken(most) <= units ? least : beyond) = most;
  }
  units -= taken(least);
  std::vector<std::int64_t> shares;
  for (const std::int64_t rows : wants) {
    std::int64_t its = std::min(unitsOf(rows), least);
    if (unitsOf(rows) > least && units > 0) {
      ++its;
      --units;
    }
    shares.push_back(std::min(rows, its * unit));
  }
  return shares;
}

}  // namespace

// Shards of an expert get the same choices, so they say the same.
std::int64_t admit(Communicator& communicator, const RouteShape& shape,
                   const std::shared_ptr<const PlanName>& name,
                   std::vector<std::int32_t>& choices) {
  const auto ranks = static_cast<std::size_t>(communicator.ranks());
  // The first positions have the most experts.
  const auto most = static_cast<std::size_t>(shape.experts.begin(1));
  std::vector<std::int32_t> tells(ranks * most), told(ranks * most);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(shape.experts.count));
  for (const std::int32_t expert : choices)
    if (expert >= 0) ++chosen[static_cast<std::size_t>(expert)];
  const auto firstOf = [&](std::size_t rank) { return shape.firstExpert(static_cast<int>(rank)); };
  const auto countOf = [&](std::size_t rank) {
    return static_cast<std::size_t>(shape.localExperts(static_cast<int>(rank)));
  };
  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::copy_n(chosen.begin() + firstOf(rank), countOf(rank), &tells[rank * most]);
  const auto tell = [&] {
    tellEachOther(communicator, name, tells.data(), told.data(), most * sizeof(std::int32_t));
  };
  tell();

  const std::size_t own = countOf(static_cast<std::size_t>(communicator.rank()));
  std::vector<std::int64_t> wants(own, 0), ofExpert(ranks);
  for (std::size_t expert = 0; expert < own; ++expert)
    for (std::size_t rank = 0; rank < ranks; ++rank) wants[expert] += told[rank * most + expert];
  const std::vector<std::int64_t> shares = sharesOf(wants, shape.maxRows, shape.alignment);
  for (std::size_t expert = 0; expert < own; ++expert) {
    for (std::size_t rank = 0; rank < ranks; ++rank) ofExpert[rank] = told[rank * most + expert];
    const std::vector<std::int64_t> gives = sharesOf(ofExpert, shares[expert], 1);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      tells[rank * most + expert] = static_cast<std::int32_t>(gives[rank]);
  }
  tell();

  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::copy_n(&told[rank * most], countOf(rank), chosen.begin() + firstOf(rank));
  std::int64_t dropped = 0;
  for (std::int32_t& expert : choices)
    if (expert >= 0 && --chosen[static_cast<std::size_t>(expert)] < 0) {
      expert = -1;
      ++dropped;
    }
  return dropped;
}

}  // namespace moeccl

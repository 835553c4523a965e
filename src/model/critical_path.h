// How long a pass takes whose phases go on beside each other.
#pragma once

#include <cstdint>
#include <span>

#include "algorithms/schedules/schedule.h"

namespace moeccl {

enum class Link : std::uint8_t { inNode, between };

struct PhasePrice {
  double exchange = 0;  // seconds on the link
  double local = 0;     // seconds of the rank's own, behind that
  Link link = Link::inNode;
};

// Seconds until the last phase has ended, where each begins as early as the schedule lets it.
// `prices` has one price for each phase. Exchanges on one kind of link go one after another, in the
// order of the list. `background`: exchanges go on while ranks compute, as on GPUs and with a
// progress thread. Without it they rest in the meantime, and ranks start them in the order of the
// list.
double criticalPath(const schedules::Schedule& schedule, std::span<const PhasePrice> prices,
                    bool background);

}  // namespace moeccl

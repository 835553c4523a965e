#include "perf/layers/plan_names.h"

#include <string_view>

#include "perf/layers/settings.h"

namespace moeccl::perf::layers {
namespace {

// Ranks of a linear all-gather that have all messages in flight at once.
constexpr int kUnthrottled = 17;

// Of whole names: "linear" is not in "linear:window=1".
void rename(std::string& text, const std::string& exchange, std::string_view from,
            std::string_view to) {
  const std::string wanted = exchange + ": " + std::string(from);
  for (std::size_t at = 0; (at = text.find(wanted, at)) != std::string::npos;) {
    const std::size_t end = at + wanted.size(), name = end - from.size();
    const bool whole = (at == 0 || text[at - 1] == ' ') &&
                       (end == text.size() || text[end] == ',' || text[end] == ';');
    if (whole) text.replace(name, from.size(), to);
    at = whole ? name + to.size() : end;
  }
}

}  // namespace

std::string nameOfPlans(moecclSchedule_t schedule, const std::vector<std::string>& passes,
                        const GroupSizes& groups) {
  const bool asS1 = groups.nMp == 1 && schedule == moecclScheduleS2;
  std::string text = scheduleName(asS1 ? moecclScheduleS1 : schedule);
  for (const std::string& exchanges : passes) (text += "; ") += exchanges;

  if (groups.nEsp == 1)
    for (const char* exchange : {"dispatch", "combine"}) rename(text, exchange, "flat", "dedup");
  // Calls of them both, as SAA's sequential way has it.
  if (asS1)
    for (std::size_t at = 0; (at = text.find("SAA: sequential", at)) != std::string::npos;)
      text.replace(at, std::string_view("SAA: sequential").size(), "combine: dedup");
  for (const char* gather : {"MP-AllGather", "MP-AllGather of the gate's sums"}) {
    if (groups.nMp == 2)
      for (const char* algorithm : {"ring", "recursive_doubling"})
        rename(text, gather, algorithm, "linear");
    if (groups.nMp == 2 || (groups.mpInNodes && groups.nMp <= kUnthrottled))
      rename(text, gather, "hierarchical", "linear");
  }
  if (groups.nEp == 2)
    for (const char* exchange : {"first EP-AlltoAll", "second EP-AlltoAll"})
      rename(text, exchange, "pairwise", "linear");
  if (groups.nEsp == 2 && groups.espInNodes)
    rename(text, "ESP-AllReduce", "hierarchical", "linear");
  if (groups.nMp == 2 && groups.mpInNodes)  // PPMoE's
    rename(text, "AllReduce", "hierarchical", "linear");
  return text;
}

}  // namespace moeccl::perf::layers

// Transforms every registered schedule in every way.
#include "tests/schedules/support.h"

namespace moeccl::schedules {

std::vector<Options> everyOption() {
  std::vector<Options> all;
  for (const bool dropless : {false, true})
    for (const bool residual : {false, true})
      for (const int chunks : {1, 2, 3}) all.push_back({dropless, residual, chunks});
  for (const bool residual : {false, true})
    for (const int chunks : {1, 2, 3})
      all.push_back({.dropless = true, .residual = residual, .chunks = chunks, .routed = true});
  return all;
}

std::vector<std::pair<std::string, Schedule>> everySchedule() {
  std::vector<std::pair<std::string, Schedule>> all;
  for (const Entry& entry : registry())
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const Options& options : everyOption()) try {
          all.emplace_back(
              std::string(entry.name) + (pass == Pass::forward ? " forward" : " backward") +
                  (options.dropless ? " dropless" : "") + (options.routed ? " routed" : "") +
                  (options.residual ? " residual" : "") + " in " + std::to_string(options.chunks),
              scheduleOf(entry, pass, options));
        } catch (const NotOffered&) {
        }
  return all;
}

}  // namespace moeccl::schedules

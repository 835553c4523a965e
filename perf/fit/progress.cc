// Shows what is being measured and how long the rest will take: on one line of a terminal, else on
// a new line every 5 seconds.
#include "perf/fit/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace moeccl::perf {
namespace {

constexpr double kSecondsBetweenLines = 5, kSecondsBetweenRewrites = 0.1;

}  // namespace

Progress::Progress(bool speaks) : speaks_(speaks), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(const Budget& budget, double now, const std::string& what) {
  if (!speaks_ || now - last_ < (terminal_ ? kSecondsBetweenRewrites : kSecondsBetweenLines))
    return;
  last_ = now;
  const std::string left = textOfSeconds(budget.secondsLeft(now));
  std::fprintf(stderr, terminal_ ? "\r\033[K%zu/%zu  %s left  %s" : "%zu/%zu  %s left  %s\n",
               budget.finished() + 1, budget.units(), left.c_str(), what.c_str());
  std::fflush(stderr);
  shown_ = terminal_;
}

void Progress::say(const std::string& text) {
  clear();
  if (speaks_) std::fprintf(stderr, "moeccl-fit: %s\n", text.c_str());
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

std::string textOfSeconds(double seconds) {
  const long whole = std::lround(seconds);
  const std::string rest = std::to_string(whole % 60);
  return std::to_string(whole / 60) + (rest.size() < 2 ? ":0" : ":") + rest;
}

std::string textOfBytes(std::size_t bytes) {
  if (bytes > 0 && bytes % (std::size_t{1} << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes > 0 && bytes % (std::size_t{1} << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

}  // namespace moeccl::perf

// What a run is doing, on rank 0's standard error: one line that is rewritten on a terminal, else a
// line every few seconds.
#pragma once

#include <string>

#include "perf/fit/budget.h"

namespace moeccl::perf {

class Progress {
 public:
  // `speaks`: on one rank only.
  explicit Progress(bool speaks);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const Budget& budget, double now, const std::string& what);
  // A line that stays.
  void say(const std::string& text);
  // Whatever is said next begins an empty line.
  void clear();

 private:
  bool speaks_;
  bool terminal_;
  bool shown_ = false;
  double last_ = -1e9;
};

// "2:05".
std::string textOfSeconds(double seconds);
// "64 KiB".
std::string textOfBytes(std::size_t bytes);

}  // namespace moeccl::perf

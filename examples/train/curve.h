// What happened in each step: a CSV file, and lines on the terminal. Rank 0's.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

namespace train {

// Of one step, over the whole batch.
struct Point {
  std::int64_t step = 0;
  double loss = 0;           // cross entropy per character, in nats
  double divergence = 0;     // from the teacher, per character, in nats; 0 without
  double auxiliaryLoss = 0;  // mean over layers and samples taken at once; 1: even
  double dropped = 0;        // share of choices
  double imbalance = 0;      // of the busiest expert: its choices by the mean
};

// One line per point, written at once: a killed run leaves what it has done.
class Log {
 public:
  // "": none. Keeps what the file has of steps up to `done`, which a resumed run does not repeat.
  // Returns what is wrong, or "".
  std::string open(const std::string& path, std::int64_t done);
  std::string add(const Point& point);

 private:
  std::string path_;
  std::ofstream file_;
};

// "step 20 of 500: loss 2.7315, 41000 tokens/s, 12 s left; ..."
class Progress {
 public:
  Progress(std::int64_t done, std::int64_t steps, std::int64_t tokensPerStep)
      : done_(done), steps_(steps), tokensPerStep_(tokensPerStep) {}
  void print(const Point& point);

 private:
  std::int64_t done_, steps_, tokensPerStep_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace train

// How a thread waits for messages: it looks, and lets others have its core between two looks. After
// some looks in vain it sleeps.
//
// Yielding is the fastest way where all who share the cores are ranks of one scheduling group: each
// gets its turn within microseconds. Other processes keep the core for milliseconds, and yielding
// does not bring the turn of another group. Then only who sleeps is woken in time, and lets those
// work for whom it waits.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace moeccl {

// How many threads run on this host, this one included.
int runningOnHost();

class Waiting {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kLooks = 200, kFewLooks = 4;
  // A thread that waits for messages too never keeps the core for so long. Ranks that compute do.
  // So a longer turn is that of other processes only where more threads run than there are ranks.
  static constexpr std::chrono::microseconds kLongTurn{1500};
  static constexpr int kLongTurns = 3;  // in a row
  // Sleeps before yielding is tried again; doubled each time that it was no better.
  static constexpr int kShortest = 256, kLongest = 8192;

  // `ranks`: how many share the cores of this one, itself included. `apart`: they belong to several
  // scheduling groups and outnumber the cores.
  explicit Waiting(int ranks = 1, bool apart = false, std::function<int()> running = &runningOnHost)
      : ranks_(ranks), apart_(apart), running_(std::move(running)) {}

  // After `looks` looks in vain: whether to sleep.
  bool sleeps(int looks) const { return looks >= (yields() ? kLooks : kFewLooks); }
  // After the look of that number, from 0.
  void yield(int look);
  // Tells how long a yield and a look have taken.
  void took(Clock::duration turn);
  // A sleep is over.
  void slept() { avoided_ -= avoided_ > 0 ? 1 : 0; }

 private:
  bool yields() const { return !apart_ && avoided_ == 0; }

  int ranks_;
  bool apart_;
  std::function<int()> running_;
  int longTurns_ = 0;
  int avoided_ = 0;  // sleeps until yielding is tried again
  int next_ = kShortest;
  Clock::time_point last_{};
};

}  // namespace moeccl

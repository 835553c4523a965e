// The calls of a communicator by their numbers: those that are not over, and those before them.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "src/comm/call.h"
#include "src/exec/tag.h"

namespace moeccl {

struct CallRecord {
  CallSignature signature;
  std::uint32_t number = 0;
  bool made = false, over = true;
  std::chrono::steady_clock::time_point asked{};  // when other ranks were asked about it, or never
  bool wondered = false;  // whether a rank that calls the same has asked, without any sign
  std::chrono::steady_clock::time_point told{};  // when this rank said for whom it waits, or never
};

class CallLog {
 public:
  // The most calls under way at once, and whether there may be one more. Tags tell 2^kCallBits
  // calls apart; half of these may be under way, so that the number of one message of a rank tells
  // that of another.
  static constexpr std::uint32_t kMost = std::uint32_t{1} << (kCallBits - 1);
  bool hasRoom() const;
  // Returns its number: 0, 1, ...
  std::uint32_t add(const CallSignature& signature);
  void release(std::uint32_t number) { at(number).over = true; }
  // Null where nothing is known of it any more, or yet.
  CallRecord* find(std::uint32_t number);
  // Whether it has been made, and is over.
  bool isOver(std::uint32_t number);

 private:
  CallRecord& at(std::uint32_t number) { return records_[number % records_.size()]; }
  const CallRecord& at(std::uint32_t number) const { return records_[number % records_.size()]; }

  std::uint32_t next_ = 0;
  std::vector<CallRecord> records_ = std::vector<CallRecord>(kMost);  // by number modulo its size
};

}  // namespace moeccl

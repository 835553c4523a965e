// Which call of a process group, or of a layer on it, each rank waits in: ranks that wait for each
// other in different ones would do so until the timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace moeccl::torch {

// Of one group, in its store. Nothing is written there but by ranks that wait for longer than
// kPatience, and nothing at all of a group without layers.
class Waits {
 public:
  static constexpr std::chrono::milliseconds kPatience{500};

  Waits(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // From now on; while the store is there.
  void watch();

 private:
  friend class Wait;

  std::string keyOf(int rank) const;
  bool watches();
  int64_t nextSerial();
  void say(const std::string& what);
  // What all ranks say; nothing where some say nothing.
  std::optional<std::vector<std::string>> all();
  // What a rank has found out is told to all, before it goes on and says nothing any more.
  void tell(const std::vector<std::string>& said, const std::string& text);
  // The text, where it is about what this rank says.
  std::optional<std::string> told(const std::string& said);

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> own_;  // the store, by a connection that nobody else waits on
  int64_t last_ = 0;
};

// A call that returns on no rank before all ranks have made it.
class Wait {
 public:
  enum class Of : std::uint8_t { group, layer };

  // waits: null: nothing is found out. what: for people, such as "ALLREDUCE".
  Wait(std::shared_ptr<Waits> waits, Of of, std::string what);
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait();

  // Again and again, in the thread that waits. A text once it is sure that ranks wait for each
  // other in calls of the group and of layers on it.
  std::optional<std::string> look();

 private:
  std::string found(const std::vector<std::string>& said) const;

  const std::shared_ptr<Waits> waits_;
  const Of of_;
  const std::string what_;
  std::string said_;
  bool failed_ = false;
  std::chrono::steady_clock::time_point next_;
  std::vector<std::string> before_;  // what all said when it was looked last
};

}  // namespace moeccl::torch

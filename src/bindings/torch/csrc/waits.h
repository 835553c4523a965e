// What ranks of a process group tell each other in its store, so that nobody waits until the
// timeout for a rank that does not come: which call of the group, or of a layer on it, each rank
// waits in, and which collectives a rank has refused before others heard of it.
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

// What ranks of one group wait in. Ranks that wait for longer than kPatience look into the store.
// What they wait in is written there only where the group has layers.
class Waits {
 public:
  static constexpr std::chrono::milliseconds kPatience{500};

  Waits(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // Ranks say what they wait in, from now on and while the store is there.
  void watch();
  // This rank takes no part in the group's collective of that number, and why.
  void refuse(int64_t number, const std::string& why);

 private:
  friend class Wait;

  std::string keyOf(int rank) const;
  void open();
  bool watches();
  // Why a rank takes no part in that collective; nothing where none has said so.
  std::optional<std::string> refused(int64_t number);
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
  bool watches_ = false;
  int64_t last_ = 0;
};

// A call that waits for other ranks.
class Wait {
 public:
  // some: a collective of the group that may return before all ranks have made it. Others do not.
  enum class Of : std::uint8_t { some, group, layer };

  // waits: null: nothing is found out. what: for people, such as "ALLREDUCE". number: of a
  // collective of the group, by which ranks refuse it; negative: none.
  Wait(std::shared_ptr<Waits> waits, Of of, std::string what, int64_t number = -1);
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait();

  // Again and again, in the thread that waits. A text once it is sure that a rank does not come, or
  // that ranks wait for each other in calls of the group and of layers on it.
  std::optional<std::string> look();

 private:
  std::string found(const std::vector<std::string>& said) const;

  const std::shared_ptr<Waits> waits_;
  const Of of_;
  const std::string what_;
  const int64_t number_;
  std::string said_;
  bool failed_ = false;
  std::chrono::steady_clock::time_point next_;
  std::vector<std::string> before_;  // what all said when it was looked last
};

}  // namespace moeccl::torch

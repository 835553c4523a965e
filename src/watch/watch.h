// What a rank knows of the others apart from data: who is dead, which communicators have failed,
// and what ranks post for one another where data connections cannot be relied on. Ranks are those
// of the job.
//
// Whatever a rank tells reaches all others that it is connected to by living ones, in the order in
// which it was told. Nobody waits for that. All functions may be called by any thread.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/rendezvous_id.h"

namespace moeccl {

// What a rank tells the others, once, when it cannot go on with a communicator; or what it asks
// them, when it suspects that another rank has not made the same call (moecclInProgress: nothing
// has failed).
struct Notice {
  std::int32_t source = -1;   // rank that sends the notice
  std::int32_t culprit = -1;  // rank that it blames, or waits for; -1 when nobody
  std::int32_t result = 0;    // moecclResult_t
  std::uint32_t comm = 0;     // communicator that failed
  std::uint64_t digest =
      0;  // of a question: what the sender's call has in common with those of other ranks,
  std::uint32_t call = 0;     // and its number
  std::uint32_t revokes = 0;  // 1: `source` has revoked it (moecclCommRevoke)
  char text[324] = {};        // for people
};

// A rank that takes part in nothing any more.
struct Loss {
  int rank = -1;
  bool left = false;  // it has closed its connections in order; else it is dead
  std::string why;    // of the dead: "its process 71 has ended"
};

// A place on the board, where each rank may post one text after the other.
struct Topic {
  std::uint32_t comm = 0;     // communicator that it is about
  std::uint32_t attempt = 0;  // to do something with it
  std::uint32_t step = 0;     // of that
  auto operator<=>(const Topic&) const = default;
};

class Watch {
 public:
  static constexpr std::size_t kLongestPost = std::size_t{1} << 20;

  // `secret`: the job's. `hosts`: the name of each rank's, for people.
  Watch(int rank, const Secret& secret, std::vector<std::string> hosts);
  virtual ~Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(hosts_.size()); }
  const Secret& secret() const { return secret_; }
  const std::string& hostOf(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  // Calls `wake` whenever there is news, from any thread and with locks held: it must not call
  // back.
  void onNews(std::function<void()> wake);
  // Counts what next() has ever had to tell; a look costs next to nothing.
  std::uint64_t news() const { return news_.load(std::memory_order_acquire); }
  // The next thing that has become known, in that order; false: nothing.
  using News = std::variant<Notice, Loss>;
  bool next(News* news);
  // All that are known to be lost, in the order in which that became known.
  std::vector<Loss> losses() const;

  void notify(const Notice& notice);

  // Replaces what this rank has posted there.
  void post(const Topic& topic, std::span<const std::byte> bytes);
  // What is posted there, by rank.
  using Posts = std::map<int, std::vector<std::byte>>;
  // Calls `done` with what is posted at `topic` and who is lost, now and whenever either may have
  // changed, until it returns true. Returns false when it has not until `deadline`.
  using Done = std::function<bool(const Posts& posts, const std::vector<Loss>& losses)>;
  bool await(const Topic& topic, TimePoint deadline, const Done& done);
  // The newest attempt of `comm` that one of `ranks` has posted about; 0: none.
  std::uint32_t newestAttempt(std::uint32_t comm, std::span<const int> ranks) const;
  // Forgets what is posted about attempts of `comm` before `attempt`.
  void forget(std::uint32_t comm, std::uint32_t attempt);

  // Tells the others that this rank leaves, and closes. What has been told before is handed over,
  // to peers that take it within a fraction of a second. Nothing is told afterwards.
  virtual void leave() = 0;

 protected:
  enum class Kind : std::uint32_t {
    notice = 1,
    loss = 2,
    post = 3,  // 4 and 5 are a ControlStream's
  };
  using Body = std::vector<std::byte>;

  // Brings a message of this rank to all others. Called with no lock held.
  virtual void carry(Kind kind, Body body) = 0;
  // A message of `origin` has come. What makes no sense is dropped.
  void arrived(int origin, Kind kind, std::span<const std::byte> body);
  // Notes a loss; returns whether it is new.
  bool note(Loss loss);
  bool isLost(int rank) const;
  static Body bodyOf(const Loss& loss);

 private:
  void add(News news);  // with the mutex held
  void changed();

  const int rank_;
  const Secret secret_;
  const std::vector<std::string> hosts_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> wake_;
  std::atomic<std::uint64_t> news_ = 0;
  std::deque<News> unread_;
  std::vector<Loss> losses_;
  std::map<Topic, Posts> board_;
};

}  // namespace moeccl

// Each attempt has two agreements, by posts on the watch: on who is left out, and on whether all
// have made the communicator.
#include "src/comm/shrink.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// Steps of an attempt. The all-gathers of make() follow.
constexpr std::uint32_t kWho = 0, kWhetherMade = 1, kFirstGather = 2;
// How much later than an excluded rank the others may call where all mean to shrink once more.
constexpr std::int64_t kAgainMs = 1000;

using Ranks = std::set<int>;  // of the job

struct Proposal {
  bool decided = false;
  int failed = -1;  // a rank of the job that could not make the communicator
  Ranks without;
};

std::vector<std::byte> bytesOf(const Proposal& proposal) {
  std::vector<std::int32_t> words = {proposal.decided, proposal.failed};
  words.insert(words.end(), proposal.without.begin(), proposal.without.end());
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

// Only what members have posted counts: other communicators may have the number too, of other
// ranks.
bool isMember(const std::vector<int>& members, int rank) {
  return std::ranges::find(members, rank) != members.end();
}

Proposal proposalIn(const std::vector<std::byte>& bytes) {
  std::vector<std::int32_t> words(std::max<std::size_t>(bytes.size() / sizeof(std::int32_t), 2));
  std::memcpy(words.data(), bytes.data(),
              std::min(bytes.size(), words.size() * sizeof(std::int32_t)));
  return {words[0] != 0, words[1], {words.begin() + 2, words.end()}};
}

// Makes progress and calls `meanwhile` now and then; less often while nothing happens, for all
// ranks of a node wait here together.
bool awaitWith(const Shrinking& from, const Topic& topic, TimePoint deadline,
               const Watch::Done& done, const std::function<void()>& meanwhile) {
  constexpr std::int64_t kShortestMs = 1, kLongestMs = 32;
  for (std::int64_t ms = kShortestMs;;) {
    const bool over = from.watch.await(topic, std::min(deadline, afterMs(ms)), done);
    // Peers that hear of it leave, so that it may be over without them.
    if (from.ended)
      throw Error(moecclRemoteError, stringf("rank %d aborted the communicator", from.rank));
    if (over) return true;
    if (isPast(deadline)) return false;
    ms = from.progress() ? kShortestMs : std::min(2 * ms, kLongestMs);
    meanwhile();
  }
}

// A member has given up the attempt that this rank still takes part in, and has begun another.
struct Superseded : Error {
  Superseded() : Error(moecclRemoteError, "another rank has called moecclCommShrink again") {}
};

// The newest attempt that a member has begun, of those that are not left out.
std::uint32_t newestAttempt(const Shrinking& from, const Ranks& without) {
  std::vector<int> members = from.members;
  std::erase_if(members, [&](int member) { return without.contains(member); });
  return from.watch.newestAttempt(from.comm, members);
}

// `member` could not make the communicator.
struct FailedElsewhere : Error {
  FailedElsewhere(const Shrinking& from, int failed)
      : Error(moecclRemoteError,
              stringf("rank %d could not make the communicator of those that are left",
                      static_cast<int>(std::ranges::find(from.members, failed) -
                                       from.members.begin()))),
        member(failed) {}
  int member;
};

// The all-gather of ranks that have nothing but the watch.
class SurvivorOob final : public Oob {
 public:
  SurvivorOob(const Shrinking& from, std::uint32_t attempt, std::vector<int> members)
      : from_(from), attempt_(attempt), members_(std::move(members)) {}

  int rank() const override {
    return static_cast<int>(std::ranges::find(members_, from_.watch.rank()) - members_.begin());
  }
  int ranks() const override { return static_cast<int>(members_.size()); }
  std::span<const std::byte> key() const override { return from_.watch.secret(); }

  void allgather(const void* send, void* recv, std::size_t bytes) override {
    const Topic topic{from_.comm, attempt_, kFirstGather + rounds_++};
    from_.watch.post(topic, std::span(static_cast<const std::byte*>(send), bytes));
    std::vector<int> missing;
    int lost = -1;
    const bool over = awaitWith(
        from_, topic, afterMs(from_.timeoutMs),
        [&](const Watch::Posts& posts, const std::vector<Loss>& losses) {
          missing.clear();
          for (int member : members_) {
            const auto post = posts.find(member);
            if (post == posts.end())
              missing.push_back(member);
            else if (post->second.size() == bytes && bytes > 0)
              std::memcpy(static_cast<std::byte*>(recv) +
                              bytes * static_cast<std::size_t>(std::ranges::find(members_, member) -
                                                               members_.begin()),
                          post->second.data(), bytes);
          }
          for (const Loss& loss : losses)
            if (std::ranges::find(missing, loss.rank) != missing.end()) lost = loss.rank;
          return missing.empty() || lost >= 0;
        },
        [this] { check(); });
    if (lost >= 0) gone(lost);
    if (!over)
      throw Error(moecclTimeout,
                  "moecclCommShrink has waited in vain for " + rankList(ranksOf(missing)));
  }

  bool tellsOfFailures() const override { return true; }
  void check() override {
    for (const Loss& loss : from_.watch.losses())
      if (isMember(members_, loss.rank)) gone(loss.rank);
    // Whoever could not go on alone is here no more.
    from_.watch.await(
        {from_.comm, attempt_, kWhetherMade}, TimePoint::min(),
        [this](const Watch::Posts& posts, const std::vector<Loss>&) {
          for (const auto& [member, post] : posts)
            if (isMember(members_, member) && !post.empty() && proposalIn(post).failed >= 0)
              throw FailedElsewhere(from_, proposalIn(post).failed);
          return true;
        });
    if (from_.watch.newestAttempt(from_.comm, members_) > attempt_) throw Superseded();
  }

 private:
  // As the caller numbers them.
  std::vector<int> ranksOf(const std::vector<int>& ofJob) const {
    std::vector<int> ranks;
    for (int member : ofJob)
      ranks.push_back(
          static_cast<int>(std::ranges::find(from_.members, member) - from_.members.begin()));
    return ranks;
  }
  [[noreturn]] void gone(int member) const {
    throw Error(moecclRemoteError, rankList(ranksOf({member})) + " on " +
                                       from_.watch.hostOf(member) +
                                       " ended during moecclCommShrink");
  }

  const Shrinking& from_;
  const std::uint32_t attempt_;
  const std::vector<int> members_;
  std::uint32_t rounds_ = 0;
};

class Agreement {
 public:
  Agreement(const Shrinking& from, const Topic& topic) : from_(from), topic_(topic) {}

  // Returns what all that live have decided on, this rank among them. Throws Error.
  Proposal operator()(Proposal mine) {
    deadline_ = afterMs(from_.timeoutMs);
    std::optional<Proposal> decision;
    bool superseded = false;
    while (!decision) {
      if (isLeftOut(mine)) leaveOut();
      from_.watch.post(topic_, bytesOf(mine));
      bool settled = false;
      // Who has begun again may have decided before: that counts, and comes first.
      const bool moved = awaitWith(
          from_, topic_, deadline_,
          [&](const Watch::Posts& posts, const std::vector<Loss>& losses) {
            settled = settles(posts, losses, &mine, &decision);
            return settled || superseded;
          },
          [&] { superseded = newestAttempt(from_, mine.without) > topic_.attempt; });
      if (settled) continue;
      // Nobody shall count on it.
      from_.watch.post(topic_, {});
      if (moved) throw Superseded();
      throw Error(moecclTimeout, "moecclCommShrink has waited in vain for " +
                                     rankList(missing_.empty() ? gaveUp_ : missing_) +
                                     ": every rank that lives and is not excluded must call it");
    }
    if (isLeftOut(*decision)) leaveOut();
    decision->decided = true;
    from_.watch.post(topic_, bytesOf(*decision));
    return *decision;
  }

 private:
  bool isLeftOut(const Proposal& proposal) const {
    return proposal.without.contains(from_.watch.rank());
  }

  // A rank that was excluded does not call, so this may be a call that comes before those of the
  // others: to shrink once more, with this rank.
  [[noreturn]] void leaveOut() {
    bool again = false;
    awaitWith(
        from_, topic_, std::min(deadline_, afterMs(kAgainMs)),
        [&](const Watch::Posts&, const std::vector<Loss>&) { return again; },
        [&] { again = newestAttempt(from_, {from_.watch.rank()}) > topic_.attempt; });
    if (again) throw Superseded();
    throw Error(moecclInvalidUsage,
                stringf("rank %d cannot shrink the communicator: the others have excluded it, or "
                        "cannot reach it",
                        from_.rank));
  }

  bool settles(const Watch::Posts& posts, const std::vector<Loss>& losses, Proposal* mine,
               std::optional<Proposal>* decision) {
    Ranks& without = mine->without;
    const std::size_t before = without.size();
    // First of all: whoever has decided may have left since, to go on.
    for (const auto& [member, post] : posts) {
      if (!isMember(from_.members, member) || without.contains(member)) continue;
      const Proposal theirs = proposalIn(post);
      if (!theirs.decided) continue;
      *decision = theirs;
      return true;
    }
    for (const Loss& loss : losses)
      if (isMember(from_.members, loss.rank)) without.insert(loss.rank);
    int failed = mine->failed;
    missing_.clear();
    gaveUp_.clear();
    for (std::size_t rank = 0; rank < from_.members.size(); ++rank) {
      const int member = from_.members[rank];
      if (without.contains(member)) continue;
      const auto post = posts.find(member);
      if (post != posts.end() && post->second.empty()) {
        gaveUp_.push_back(static_cast<int>(rank));
        continue;
      }
      const Proposal theirs = post == posts.end() ? Proposal{} : proposalIn(post->second);
      without.insert(theirs.without.begin(), theirs.without.end());
      failed = std::max(failed, theirs.failed);
      if (post == posts.end() || theirs.without != without)
        missing_.push_back(static_cast<int>(rank));
    }
    if (without.size() > before) return true;
    if (!missing_.empty() || !gaveUp_.empty()) return false;
    *decision = Proposal{true, failed, without};
    return true;
  }

  const Shrinking& from_;
  const Topic topic_;
  TimePoint deadline_ = kNever;
  std::vector<int> missing_;  // ranks that have not proposed the same,
  std::vector<int> gaveUp_;   // or have waited in vain themselves
};

}  // namespace

std::unique_ptr<Communicator> shrinkTo(
    const Shrinking& from, const std::vector<int>& excluded, const std::optional<Error>& wrong,
    const std::function<std::unique_ptr<Communicator>(Oob&)>& make) {
  Ranks own;
  for (int rank : excluded) own.insert(from.members[static_cast<std::size_t>(rank)]);
  Ranks without = own;
  for (;;) {
    // Not all members need have taken part in all attempts so far.
    const std::uint32_t attempt = std::max(*from.attempts + 1, newestAttempt(from, without));
    *from.attempts = attempt;
    from.watch.forget(from.comm, attempt);
    std::unique_ptr<Communicator> made;
    try {
      without = Agreement(from, {from.comm, attempt, kWho})({false, -1, without}).without;
      std::vector<int> members;
      for (int member : from.members)
        if (!without.contains(member)) members.push_back(member);
      std::optional<Error> error;
      int failed = from.watch.rank();
      try {
        if (wrong) throw Error(*wrong);
        SurvivorOob oob(from, attempt, members);
        made = make(oob);
      } catch (const Superseded&) {
        throw;
      } catch (const FailedElsewhere& e) {
        error = e;
        failed = e.member;
      } catch (const Error& e) {
        error = e;
      } catch (const std::exception& e) {
        error.emplace(moecclSystemError, e.what());
      }
      // A rank may have ended after others were done.
      const Proposal outcome = Agreement(
          from, {from.comm, attempt, kWhetherMade})({false, error ? failed : -1, without});
      if (outcome.without == without) {
        if (error) throw Error(*error);
        if (outcome.failed >= 0) throw FailedElsewhere(from, outcome.failed);
        return made;
      }
      without = outcome.without;
    } catch (const Superseded&) {
      without = own;
    } catch (...) {
      if (made) made->abort();
      throw;
    }
    if (made) made->abort();
  }
}

}  // namespace moeccl

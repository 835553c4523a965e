// A communicator on host memory: how a collective call becomes a run of a plan over a transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"
#include "src/base/error.h"
#include "src/comm/awaited.h"
#include "src/comm/call.h"
#include "src/comm/call_log.h"
#include "src/comm/communicator.h"
#include "src/comm/domain.h"
#include "src/comm/failure.h"
#include "src/exec/tag.h"

namespace moeccl {

// How long a failed call waits for its transfers to end: the caller may free its buffers then.
// Longer than any transport takes; what is left is the domain's.
inline constexpr std::chrono::milliseconds kGrace{3000};

class HostCommunicator;

// Calls that wait for those before them: a stream, as communicators know it. moecclStream_t points
// to one.
class CallQueue : public Domain::Work {
 public:
  // Adds a call; throws Error when the communicator is of another domain or has failed.
  virtual void enqueue(HostCommunicator& communicator, Call call) = 0;
  virtual void synchronize() = 0;

 protected:
  ~CallQueue() = default;
};

class HostCommunicator final : public Communicator, public Domain::Member {
 public:
  // Both are collective; they throw Error.
  static std::unique_ptr<Communicator> create(Oob& oob, const Settings& settings);
  // The second half of create(): of all ranks of a transport that is connected.
  static std::unique_ptr<Communicator> over(std::unique_ptr<Transport> transport,
                                            std::unique_ptr<Watch> watch, Topology topology,
                                            const Settings& settings, Waiting waiting = Waiting());
  std::unique_ptr<Communicator> split(int color, int key, const Settings& settings,
                                      const std::optional<Error>& wrong) override;
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, const Settings& settings,
                                       const std::optional<Error>& wrong) override;
  std::unique_ptr<Communicator> subset(const std::vector<int>& members,
                                       const Settings& settings) override;
  ~HostCommunicator() override;

  std::string transportName() override { return domain_->transport().name(); }
  // `stream`: a CallQueue, or nullptr: returns when the call is complete.
  void launch(Call call, void* stream) override;
  void allgather(const void* send, void* recv, std::size_t bytes) override;
  void exchange(const std::shared_ptr<const PlanName>& name, const std::vector<RankBytes>& sends,
                std::vector<RankBytes>& receives) override;
  void read(std::span<const Reading> parts, void* stream) override;
  [[noreturn]] void enqueue(const std::shared_ptr<const PlanName>& name, void* stream,
                            std::size_t tokens,
                            const std::function<void(NcclLanes& lanes)>& body) override;
  Domain& domain() { return *domain_; }
  std::shared_ptr<Domain> sharedDomain() { return domain_; }
  std::function<void()> leaver() const override {
    return [domain = domain_] { domain->watch().leave(); };
  }

  // Makes the call and waits for it. Throws Error.
  void run(const Call& call);
  void waitUntil(const std::function<bool()>& done) override;
  void requireIdle() override;
  // For a call that a stream is then given, with others. Throws Error.
  std::uint32_t takeNumber(const Call& call);
  // For a call with a number that will not be given to any stream: the communicator fails.
  void giveUp(const std::string& why);
  // For streams; the domain's lock is held. begin() starts a call; while proceed() says so, it has
  // another part. The call is over when it has none and its run is idle, or when its run failed; it
  // must then be handed to end(), which throws Error if it failed.
  struct Active {
    // Set for a collective; nullptr otherwise.
    RunSlot* slot = nullptr;
    CachedPlan* plan = nullptr;
    std::uint32_t number = 0;
    bool counting = false;           // a first part, which tells relays what they will carry
    MessageRun* messages = nullptr;  // set for sends and receives
    std::uint64_t looks = 0;         // by lookBehind() before it began

    Run& run() const { return slot != nullptr ? static_cast<Run&>(slot->run) : *messages; }
  };
  // Every collective takes a number when it is made, not when it starts. No more than
  // CallLog::kMost are under way at once, for which this waits. Plans the call, so that beginning
  // it will not fail for that. Throws Error; then nothing has happened.
  std::uint32_t nextCall(const Call& call, Domain::Lock& lock);
  // For a call that will never begin: peers would wait for it, so the communicator has failed.
  void abandon(const std::string& why);
  Active begin(const Call& call, std::uint32_t number);
  // Whether the part has failed, and it is known why; or is done and, if it was the last, needs no
  // progress of this rank any more.
  bool isOver(const Active& active);
  // Starts the next part of a call whose part is over; returns whether there was one.
  bool proceed(const Call& call, Active* active);
  void end(const Call& call, const Active& active);
  // Throws the error that this communicator has failed with, if it has.
  void throwIfFailed() const;
  moecclResult_t failure() const override { return failure_.result; }
  // The same, from outside the lock, after a look at what has arrived.
  moecclResult_t asyncFailure() override;
  std::vector<int> failedRanks() override;
  std::string failureText() override;
  void revoke(const std::string& text) override;
  void dependOn(Communicator& whole) override;

  // For the domain.
  std::uint32_t number() const override { return number_; }
  bool wasShrunk() const override { return shrinks_ > 0; }
  bool receiveWaiting() override { return !waiting_.empty() && waiting_.advance(); }
  void timedOut(const Run& run, std::chrono::milliseconds timeout) override;
  void compare(const HostRun& run, std::chrono::steady_clock::duration still) override;
  void tellAwaited(const HostRun& run) override;
  bool accepts(const Notice& notice) override;
  void lost(const Loss& loss) override;
  void forget(const Member& other) override;

  // Waits for queued work of streams, then leaves the domain.
  void destroy() override;
  // Tells the others and leaves, without waiting for them.
  void abort() override;

 private:
  HostCommunicator(std::shared_ptr<Domain> domain, std::uint32_t number, int rank,
                   Topology topology, std::vector<int> transportRanks, Settings settings);

  // Whether a run that has failed may have done so for a reason that is about to become known.
  bool awaitsCause(const Run& run);
  // The plan of a call that has one.
  CachedPlan& planOf(const Call& call);
  Active beginMessages(const MessagesCall& call);
  // Hands `active` to the transport; `counting`: only the sizes of its blocks.
  void start(const Call& call, const Active& active);
  void checkCounts(const Call& call, const Active& active);
  void ask(CallRecord& record);
  // Looks for messages of calls that are over here, the last of which is `number`. They are of a
  // rank that has made another call, or of one that is far ahead: its later messages tell which.
  void lookBehind(std::uint32_t number);
  // Judges these messages by what a call that is over has told of them.
  void judge(const Active& active);
  // A question of another rank of the communicator.
  void answer(int source, const Notice& question);
  // Another rank says for whom it waits in a call. Where this one waits, in that or in another, so
  // does it.
  void hearAwaited(int source, const Notice& notice);
  void notify(moecclResult_t result, int culprit, const std::string& text, const CallRecord* asked);
  // Waits, but not for ever, until no transfer of this communicator, which has failed, uses its
  // callers' buffers.
  void awaitTransfers(Domain::Lock& lock);
  // Marks the communicator failed, cancels its runs and, unless a peer told us, tells the others.
  void fail(moecclResult_t result, int culprit, const std::string& text, bool tellOthers);
  // Fails the communicator, since a rank of it, or of one that it depends on, has revoked that.
  void revoked(const Revocation& by);
  void failFrom(const Run& run, const std::string& name);
  // "rank 1 sends 8 bytes where rank 0 expects 4".
  static std::string sizesText(int sender, std::uint64_t sends, int receiver,
                               std::uint64_t expects);
  // "allreduce (ring)", "messages".
  static std::string nameOf(const Active& active);
  bool isIdle() const;
  template <typename Function>
  void forEachRun(const Function& function) const {
    for (const std::shared_ptr<CachedPlan>& plan : plans_.all())
      for (const std::unique_ptr<RunSlot>& slot : plan->slots) function(slot->run);
    for (const std::unique_ptr<MessageRun>& run : messageRuns_) function(*run);
  }
  const std::string& hostOf(int rank) const;

  std::shared_ptr<Domain> domain_;
  std::uint32_t number_;
  std::vector<int> transportRanks_;  // by rank
  PlanCache plans_;
  CallLog calls_;
  std::vector<std::unique_ptr<MessageRun>> messageRuns_;
  std::vector<MessageRun*> idleMessageRuns_;
  MessageRun::Queue waiting_;
  Failure failure_;
  bool remote_ = false;                   // the failure is another rank's
  std::vector<HostCommunicator*> parts_;  // that depend on it
  // The first message of a rank that nobody has taken, for a call that is over.
  struct Suspect {
    Tag tag = 0;
    int rank = -1;
    std::uint32_t call = 0;
    std::uint64_t looks = 0;  // when it was found
    std::string text;         // of the call; empty where it is not known any more
    Clock::time_point since{};
  };
  std::vector<Suspect> suspects_;
  Awaited awaited_;
  std::uint64_t looks_ = 0;
  std::uint32_t shrinks_ = 0;
  std::vector<int> left_;           // those of failure_.lost that have left
  Clock::time_point causeUntil_{};  // why a connection broke; none yet: not broken
};

}  // namespace moeccl

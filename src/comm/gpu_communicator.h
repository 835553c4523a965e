// A communicator on GPUs: calls are enqueued on CUDA streams and run over NCCL. It has no
// transport; what its ranks agree on goes through the all-gather that it is made with, and then
// through NCCL too.
//
// A rank that is dead ends it: calls return, what is enqueued is aborted, and streams go on. So do
// ranks that have made different calls (gpu_calls.h). A thread sees to that (gpu_job.h), also while
// the caller's is inside NCCL.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/comm/communicator.h"
#include "src/comm/failure.h"
#include "src/comm/gpu_calls.h"
#include "src/comm/gpu_job.h"
#include "src/exec/nccl_run.h"

namespace moeccl {

// Throws Error where a rank's plan has a reduction of more terms than kernels take: on all ranks
// alike, so that none enqueues what others refuse.
void requireFewTerms(const AlgorithmChoice& choice, const Topology& topology);

class GpuCommunicator final : public Communicator {
 public:
  // All are collective, and throw Error. The first makes a communicator of ranks that have an
  // all-gather.
  static std::unique_ptr<Communicator> create(Oob& oob, const Settings& settings);
  // Makes a communicator of the ranks of the user's NCCL communicator, which is needed only inside
  // this.
  static std::unique_ptr<Communicator> adopt(Gpu::Comm theirs, const Settings& settings);
  std::unique_ptr<Communicator> split(int color, int key, const Settings& settings,
                                      const std::optional<Error>& wrong) override;

  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, const Settings& settings,
                                       const std::optional<Error>& wrong) override;
  std::unique_ptr<Communicator> subset(const std::vector<int>&, const Settings&) override;

  ~GpuCommunicator() override;

  std::optional<Device> device() const override { return Device{gpu_, device_, nvlink_}; }
  std::string transportName() override { return gpu_->name(); }
  std::function<void()> leaver() const override {
    return [job = job_] { job->watch().leave(); };
  }
  bool serves(const AlgorithmChoice& choice) override;
  // `stream`: a cudaStream_t; nullptr: the legacy default stream. Returns when all is enqueued.
  void launch(Call call, void* stream) override;
  void allgather(const void* send, void* recv, std::size_t bytes) override;
  // Both wait for calls before them, too.
  void exchange(const std::shared_ptr<const PlanName>& name, const std::vector<RankBytes>& sends,
                std::vector<RankBytes>& receives) override;
  void read(std::span<const Reading> parts, void* stream) override;
  void enqueue(const std::shared_ptr<const PlanName>& name, void* stream, std::size_t tokens,
               const std::function<void(NcclLanes& lanes)>& body) override;
  moecclResult_t asyncFailure() override;
  // Throws while there are CUDA graphs that calls of it were captured into.
  void requireUnused() const override;
  std::vector<int> failedRanks() override;
  std::string failureText() override;
  void revoke(const std::string& text) override;
  void dependOn(Communicator& whole) override;
  void destroy() override;
  void abort() override;

  GpuJob& job() { return *job_; }
  // For the job's thread. A rank of the job is lost; if it is one of this communicator's and dead,
  // it has failed.
  void lost(const Loss& loss);
  // Another rank asks about a call of this communicator, has found that calls differ, or revokes
  // it. Returns whether the notice was for this communicator.
  bool hear(const Notice& notice);
  // Fails this communicator if the one that it depends on has been revoked.
  void followWhole();
  // Another communicator leaves the job.
  void forget(const GpuCommunicator& other) {
    if (whole_ == &other) whole_ = nullptr;
  }
  // Asks the others where a call stands still.
  void compareCalls();
  // Ends what is enqueued and can never be complete.
  void endWhatIsStuck();

 private:
  // Which ranks of the job it has, by rank, and its number there.
  struct Place {
    std::shared_ptr<GpuJob> job;
    std::vector<int> members;
    std::uint32_t number;
    bool nvlink;  // as in Device
  };
  // The lanes while a call needs them: they do not end meanwhile, unless it takes too long.
  class Use {
   public:
    explicit Use(GpuCommunicator& of) : of_(of) {
      const std::lock_guard lock(of_.mutex_);
      lanes_ = !of_.failure_.any() ? of_.lanes_.get() : nullptr;
      ++of_.users_;
    }
    ~Use() {
      const std::lock_guard lock(of_.mutex_);
      --of_.users_;
      of_.changed_.notify_all();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    // nullptr where the communicator has failed.
    NcclLanes* lanes() const { return lanes_; }
    // Throws the error that it has failed with.
    NcclLanes& require() const {
      if (lanes_ == nullptr) of_.throwIfFailed();
      return *lanes_;
    }

   private:
    GpuCommunicator& of_;
    NcclLanes* lanes_;
  };

  GpuCommunicator(std::unique_ptr<NcclLanes> lanes, int rank, Topology topology, Settings settings,
                  Place place);
  // For lanes of a place.
  static Patience patienceOf(const Place& place, std::int64_t timeoutMs);
  // All ranks make this call, here on `stream`; returns whether it is captured there.
  bool noteCall(CallSignature signature, void* stream);
  void notify(moecclResult_t result, const GpuCalls::Question& what);
  // With mutex_ held.
  void revoked(const Revocation& by);
  // The second half of create() and adopt(), over the all-gather that the ranks have until then.
  // `makeLanes` is given what to look at while it waits.
  static std::unique_ptr<Communicator> make(
      Oob& oob, const Settings& settings, Gpu& gpu,
      const std::function<std::unique_ptr<NcclLanes>(const Patience&)>& makeLanes);

  // Throws InvalidUsage where GPUs do not serve it. Plans of all ranks may be needed for that.
  void requireServed(const AlgorithmChoice& choice) const;
  void enqueueMessages(const MessagesCall& call, void* stream);
  void enqueueRows(const Call& call, void* stream);
  void enqueueCollective(const Call& call, void* stream);
  // All ranks come to their first call of this name, which cannot be captured.
  void meetFor(NcclLanes& lanes, std::uint64_t name, void* stream);
  void requireNoCapture(void* stream) const;
  // Calls body(lanes); what it throws becomes the communicator's error, and begins with what().
  template <typename What, typename Body>
  void onLanes(const What& what, const Body& body) {
    const Use use(*this);
    NcclLanes& lanes = use.require();
    lanes.setTimeout(callTimeoutMs());
    const OnDevice here(*gpu_, device_);
    try {
      body(lanes);
    } catch (const RefusedInCapture& e) {
      throw Error(e.result(), what() + ": " + e.what());
    } catch (const Error& e) {
      fail(e.result(), what() + ": " + e.what());
      throwIfFailed();
    }
  }
  std::string onRank(const std::string& what) const {
    return what + " on rank " + std::to_string(rank_);
  }
  // Whether NCCL's own function does the call, if its algorithm is that.
  static bool isNative(const CollectiveCall& call);
  void enqueueNative(NcclLanes& lanes, const CollectiveCall& call, void* stream);
  struct CachedRun {
    CachedPlan plan;  // of a choice
    std::unique_ptr<NcclRun> run;
    bool met = false;  // all ranks have come to a call of it
  };
  CachedRun& runFor(const AlgorithmChoice& choice);
  void throwIfFailed() const;
  // Notes the first error, unless it turns out that a rank is dead.
  void fail(moecclResult_t result, const std::string& text);
  void note(moecclResult_t result, const std::string& text);
  // `limit`: how long the caller waits for their end.
  void endLanes(std::chrono::milliseconds limit);

  const std::shared_ptr<Gpu> gpu_;
  const int device_;
  const bool nvlink_;
  const std::shared_ptr<GpuJob> job_;
  const std::vector<int> members_;
  const std::uint32_t number_;
  std::uint32_t splits_ = 0, shrinks_ = 0;
  std::deque<CachedRun> runs_;
  std::vector<AlgorithmChoice> refused_;  // that have been asked about
  std::vector<std::uint64_t> metRows_;    // names of own plans whose calls all ranks have come to
  std::vector<Extent> scratch_;           // of the call at hand
  GpuCommunicator* whole_ = nullptr;      // that it depends on; the job's mutex guards it

  // Guards what follows, which the job's thread changes too.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<NcclLanes> lanes_;  // nullptr once they have ended
  int users_ = 0;                     // of lanes_
  Failure failure_;
  // A rank is dead, or has revoked it, or ranks have made different calls.
  bool stuck_ = false;
  bool differs_ = false;  // the latter
  GpuCalls calls_;
};

}  // namespace moeccl

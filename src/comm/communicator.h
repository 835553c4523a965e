// A communicator, on host memory (HostCommunicator) or on GPUs (GpuCommunicator): who its ranks
// are, what can be asked of it, and by what its algorithms are chosen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/topology.h"
#include "src/base/error.h"
#include "src/comm/call.h"
#include "src/comm/profile_check.h"
#include "src/comm/rank_bytes.h"
#include "src/comm/settings.h"
#include "src/model/cost_model.h"

namespace moeccl {

class Gpu;
class NcclLanes;
class Oob;

// A device of a GPU, and what calls it.
struct Device {
  std::shared_ptr<Gpu> gpu;
  int number;
  bool nvlink;  // all ranks' are of models that NVLink joins; the same on all ranks
};

// What the C API asks for. All but the first few may throw Error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return topology_.ranks(); }
  const Topology& topology() const { return topology_; }
  const Settings& settings() const { return settings_; }
  // Where buffers are; none: in host memory.
  virtual std::optional<Device> device() const { return std::nullopt; }
  // What moves the bytes, with its version: "UCX 1.13.1".
  virtual std::string transportName() = 0;

  // Collective; nullptr for ranks with MOECCL_SPLIT_NOCOLOR. `wrong`: this rank's arguments are;
  // then all ranks throw, as agree() does (oob.h), and the communicator is as before.
  virtual std::unique_ptr<Communicator> split(int color, int key, const Settings& settings,
                                              const std::optional<Error>& wrong) = 0;
  // Collective over the ranks that live and are not `excluded`, from any state (shrink.h). `wrong`
  // as above.
  virtual std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded,
                                               const Settings& settings,
                                               const std::optional<Error>& wrong) = 0;
  // Makes a communicator of these ranks, in this order. Collective over them alone.
  virtual std::unique_ptr<Communicator> subset(const std::vector<int>& members,
                                               const Settings& settings) = 0;
  // How long calls from now on may not advance; negative: for ever.
  void setTimeout(std::int64_t milliseconds) { callTimeoutMs_ = milliseconds; }
  std::int64_t callTimeoutMs() const { return callTimeoutMs_; }
  // Whether calls of it are served where the buffers are. The same on all ranks.
  virtual bool serves(const AlgorithmChoice&) { return true; }

  // The costs that algorithms are chosen by where the user has fixed none.
  CostModel& model();
  // nullptr: typical links. `ranksOnNode`: as CostModel has it. The same on all ranks.
  void setProfile(std::shared_ptr<const Profile> profile, int ranksOnNode = 0);
  // Takes the profile of `parent`, and its nodes. Other threads may be making subsets of it.
  void chooseAs(const Communicator& parent);
  // Decides what a call leaves open: the algorithm, and how relays know the sizes of blocks. All
  // ranks decide alike. Throws Error.
  void decide(CollectiveCall& call);
  // Warns, once, if calls do not take the time that the profile predicts. Takes one that the caller
  // has waited for.
  void checkProfile(double predicted, double seconds);

  // Starts a call, whose algorithm is chosen, on a stream, which is the C API's argument.
  virtual void launch(Call call, void* stream) = 0;
  // Makes progress until done() holds, which is asked often and must be cheap; where the
  // communicator has failed before, throws why. On GPUs nothing waits here.
  virtual void waitUntil(const std::function<bool()>& done) { static_cast<void>(done); }
  // Throws InvalidUsage while calls of it are under way.
  virtual void requireIdle() {}
  // Collective: what each rank has, `bytes` bytes of host memory. Waits for it.
  virtual void allgather(const void* send, void* recv, std::size_t bytes) = 0;
  // An exchange of host memory between ranks that know how many bytes come from whom: nothing is
  // heard of others. Fills `receives`, whose sizes are as they come; what is for this rank itself,
  // or is empty, is left out. Collective; waits for it.
  virtual void exchange(const std::shared_ptr<const PlanName>& name,
                        const std::vector<RankBytes>& sends, std::vector<RankBytes>& receives) = 0;
  // Copies what is where buffers are to other memory of the host, once `stream` has come so far;
  // the caller waits for it.
  struct Reading {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  virtual void read(std::span<const Reading> parts, void* stream) = 0;
  // On GPUs alone: calls body(lanes), which enqueues something on `stream`. `tokens`: for a call of
  // all ranks, how many tokens its messages have room for; the first call of the name waits for all
  // ranks. 0: there are no messages.
  virtual void enqueue(const std::shared_ptr<const PlanName>& name, void* stream,
                       std::size_t tokens, const std::function<void(NcclLanes& lanes)>& body) = 0;
  // The error of work on streams.
  virtual moecclResult_t asyncFailure() = 0;
  // Those of its ranks that are known to be dead or to have left, in the order in which that became
  // known.
  virtual std::vector<int> failedRanks() = 0;
  // Why it has failed; "" where it has not.
  virtual std::string failureText() = 0;
  // Returns a function that tells the others that this rank has left, also when the communicator is
  // no more.
  virtual std::function<void()> leaver() const = 0;

  // Fails it on all its ranks, with this rank's number and `text`, and all that depend on it.
  // Local; any thread may call it.
  virtual void revoke(const std::string& text) = 0;
  // A group of a grid fails too when the grid's communicator, `whole`, is revoked.
  virtual void dependOn(Communicator& whole) = 0;

  // Throws InvalidUsage while something beside this library needs the communicator; destroy() would
  // wait for it.
  virtual void requireUnused() const {}
  // The object is of no use after either.
  // Waits for what has been started and, where the others must, for the other ranks.
  virtual void destroy() = 0;
  virtual void abort() = 0;

  // The text of the last error of a function of the C API that was called on it.
  std::string& lastError() { return lastError_; }

 protected:
  Communicator(int rank, Topology topology, Settings settings)
      : rank_(rank),
        topology_(std::move(topology)),
        settings_(std::move(settings)),
        callTimeoutMs_(settings_.timeoutMs) {}

  int rank_;
  Topology topology_;
  Settings settings_;
  std::int64_t callTimeoutMs_;
  std::atomic<bool> ended_ = false;  // destroy() or abort() has been called

 private:
  AlgorithmChoice fastest(const CollectiveCall& call, const Parameters& problem);
  void tell(const AlgorithmChoice& chosen, std::size_t blockBytes);

  std::unique_ptr<CostModel> model_;  // nullptr: nobody has needed it
  ProfileCheck profileCheck_;
  std::vector<std::string> told_;  // choices that the log has, "alltoall pairwise"
  std::string lastError_;
};

// The links that calls are priced by where no profile says more.
Typical typicalOf(const Communicator& communicator);

}  // namespace moeccl

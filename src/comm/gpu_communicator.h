// A communicator on GPUs: calls are enqueued on CUDA streams and run over NCCL. It has no
// transport; what its ranks agree on goes through the all-gather that it is made with, and then
// through NCCL too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/comm/communicator.h"
#include "src/exec/nccl_run.h"

namespace moeccl {

// Throws Error where a rank's plan has a reduction of more terms than kernels take: on all ranks
// alike, so that none enqueues what others refuse.
void requireFewTerms(const AlgorithmChoice& choice, const Topology& topology);

class GpuCommunicator final : public Communicator {
 public:
  // All are collective, and throw Error. The first: of ranks that have an all-gather.
  static std::unique_ptr<Communicator> create(Oob& oob, const Settings& settings);
  // Of the ranks of the user's NCCL communicator, which is needed only inside this.
  static std::unique_ptr<Communicator> adopt(Gpu::Comm theirs, const Settings& settings);
  std::unique_ptr<Communicator> split(int color, int key, const Settings& settings) override;

  std::unique_ptr<Communicator> shrink(const std::vector<int>&, const Settings&) override;
  std::unique_ptr<Communicator> subset(const std::vector<int>&, const Settings&) override;

  std::optional<Device> device() const override {
    return Device{lanes_->sharedGpu(), lanes_->device()};
  }
  std::string transportName() override { return lanes_->gpu().name(); }
  bool serves(const AlgorithmChoice& choice) override;
  // `stream`: a cudaStream_t; nullptr: the legacy default stream. Returns when all is enqueued.
  void launch(Call call, void* stream) override;
  void allgather(const void* send, void* recv, std::size_t bytes) override;
  moecclResult_t asyncFailure() override;
  // CUDA graphs do.
  void requireUnused() const override;
  std::vector<int> failedRanks() override { return {}; }
  std::string failureText() override { return failureText_; }
  void destroy() override;
  void abort() override;

 private:
  GpuCommunicator(std::unique_ptr<NcclLanes> lanes, int rank, Topology topology, Settings settings);

  // Throws InvalidUsage where GPUs do not serve it; `plan`: this rank's. Plans of all ranks may be
  // needed for that.
  void requireServed(const AlgorithmChoice& choice, const Plan& plan) const;
  void enqueueMessages(const Call& call, void* stream);
  // Whether NCCL's own function does the call, if its algorithm is that.
  static bool isNative(const Call& call);
  void enqueueNative(const Call& call, void* stream);
  NcclRun& runFor(const AlgorithmChoice& choice);
  void throwIfFailed() const;
  // Notes the first error.
  void fail(moecclResult_t result, const std::string& text);

  struct CachedRun {
    AlgorithmChoice choice;
    std::unique_ptr<NcclRun> run;
  };

  std::unique_ptr<NcclLanes> lanes_;  // nullptr once destroyed or aborted
  std::vector<CachedRun> runs_;
  std::vector<AlgorithmChoice> refused_;  // that have been asked about
  std::vector<Extent> scratch_;           // of the call at hand
  moecclResult_t failure_ = moecclSuccess;
  std::string failureText_;
};

}  // namespace moeccl

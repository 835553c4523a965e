// torch.distributed's backend "moeccl".
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "coalescing.h"
#include "communicator.h"
#include "side_stream.h"
#include "tensors.h"
#include "waits.h"
#include "work.h"

namespace moeccl::torch {

class MoecclBackend final : public c10d::Backend {
 public:
  // Collective over the group. `globalRanks`: of a group's members in the default group; empty: it
  // is the default group.
  MoecclBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                std::chrono::milliseconds timeout, const std::vector<int64_t>& globalRanks,
                std::string group);
  ~MoecclBackend() override;

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "moeccl"; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  void abort() override;
  void shutdown() override;
  // Makes a communicator of some ranks of the group, for their own calls; collective over them.
  std::shared_ptr<Communicator> subset(const std::vector<int>& ranks) const;
  const std::shared_ptr<Waits>& waits() const { return waits_; }

  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& outputSplits, std::vector<int64_t>& inputSplits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int peer, int tag) override;
  WorkPointer recv(Tensors& tensors, int peer, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waitAllRanks) override;

 private:
  // Makes the call, or several that `launch` starts in a group of its own.
  WorkPointer run(c10d::OpType type, std::chrono::milliseconds timeout, bool async, Needs needs,
                  const Launch& launch);
  // outputs: a list for each input, by rank.
  WorkPointer gatherLists(TensorLists outputs, Tensors& inputs,
                          const c10d::AllgatherOptions& options);
  WorkPointer message(c10d::OpType type, Needs needs, const Launch& launch);
  WorkPointer newWork(c10d::OpType type, Needs needs, bool onCuda);
  // The communicator for what `needs` has: the host's, or that of the device.
  Communicator& communicatorFor(const Needs& needs, std::shared_ptr<Communicator>* holder,
                                moecclStream_t* stream);
  std::string where() const;
  // In the handler of a collective's error, which it throws on: those who wait for this rank in the
  // call are told.
  [[noreturn]] void refuse(const std::exception& error);

  const c10::intrusive_ptr<Options> options_;
  const std::string group_;
  const std::vector<int64_t> globalRanks_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Waits> waits_;
  std::shared_ptr<Communicator> host_, cuda_;
  SideStream side_;
  uint64_t sequence_ = 0;
  int64_t collectives_ = 0;  // that this rank has made or refused
  // Whether calls are noted now.
  bool coalesces();
  std::optional<Coalescing> coalescing_;
};

}  // namespace moeccl::torch

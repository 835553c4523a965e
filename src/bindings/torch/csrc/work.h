// One call as torch sees it: completes by an event of moeccl's.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <moeccl/moeccl.h>

#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "communicator.h"
#include "waits.h"

namespace moeccl::torch {

class MoecclWork final : public c10d::Work {
 public:
  // What a call needs until it is complete, and what is done then.
  struct Needs {
    std::vector<at::Tensor> tensors;           // kept
    std::vector<std::function<void()>> after;  // what is left to copy
    std::vector<at::Tensor> outputs;           // the result
    std::shared_ptr<int> source;               // of a receive of anybody

    // The device of the first tensor on CUDA; there is one.
    c10::Device cudaDevice() const;
  };

  MoecclWork(int rank, c10d::OpType type, std::string where, uint64_t sequence, Needs needs,
             std::vector<c10::Device> devices);

  // The call is complete already, or has been enqueued on CUDA's current stream.
  void finishNow();
  // Completes when all that is on the stream now is. `mayReuse`: the stream is then given back.
  void finishWith(const std::shared_ptr<Communicator>& communicator, moecclStream_t stream,
                  bool mayReuse);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return needs_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  // The group's, for a collective; else null and left out. Set before finishWith.
  std::shared_ptr<Waits> waits;
  Wait::Of of = Wait::Of::some;
  int64_t number = -1;  // of the group's collectives

 private:
  static void completed(moecclResult_t result, void* context);
  void complete(moecclResult_t result);

  const std::string where_;
  const uint64_t sequence_;
  Needs needs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::optional<c10::Event> reached_;  // on CUDA
  std::weak_ptr<Communicator> communicator_;
};

}  // namespace moeccl::torch

#include "backend.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <numeric>

#include "tensors.h"

namespace moeccl::torch {
namespace {

// The communicator of the default group, from which others are made.
std::mutex worldMutex;
std::weak_ptr<Communicator> world;

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "moeccl takes one tensor per rank, not ", tensors.size());
  return tensors[0];
}

std::vector<at::Tensor>& only(std::vector<std::vector<at::Tensor>>& lists) {
  TORCH_CHECK(lists.size() == 1, "moeccl takes one list of tensors per rank, not ", lists.size());
  return lists[0];
}

// A reduction in place, whatever the strides.
std::pair<void*, size_t> inPlace(const at::Tensor& tensor, const Numbers& numbers, Needs* needs) {
  return {output(tensor, true, needs), static_cast<size_t>(tensor.numel()) * numbers.perElement};
}

size_t elementBytes(const at::Tensor& tensor) { return tensor.element_size(); }

// Elements of each rank's part of the first dimension.
std::vector<size_t> countsOf(const at::Tensor& tensor, const std::vector<int64_t>& sizes,
                             int ranks) {
  std::vector<size_t> counts;
  if (sizes.empty()) {
    TORCH_CHECK(tensor.dim() > 0 && tensor.size(0) % ranks == 0, "the first dimension, ",
                tensor.dim() > 0 ? tensor.size(0) : 0, ", is no multiple of the ", ranks,
                " ranks; pass split sizes");
    counts.assign(static_cast<size_t>(ranks), static_cast<size_t>(tensor.numel() / ranks));
    return counts;
  }
  TORCH_CHECK(static_cast<int>(sizes.size()) == ranks, "there are ", sizes.size(),
              " split sizes for ", ranks, " ranks");
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK(tensor.dim() > 0 && rows == tensor.size(0), "split sizes sum up to ", rows,
              ", the first dimension is ", tensor.dim() > 0 ? tensor.size(0) : 0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "a split size is ", size);
    counts.push_back(static_cast<size_t>(size * row));
  }
  return counts;
}

std::vector<size_t> behindOneAnother(const std::vector<size_t>& counts) {
  std::vector<size_t> displs(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), displs.begin(), size_t{0});
  return displs;
}

}  // namespace

MoecclBackend::MoecclBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             std::chrono::milliseconds timeout,
                             const std::vector<int64_t>& globalRanks, std::string group)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("moeccl", timeout)),
      group_(std::move(group)),
      globalRanks_(globalRanks),
      timeout_(timeout) {
  options_->global_ranks_in_group.assign(globalRanks.begin(), globalRanks.end());
  std::shared_ptr<Communicator> parent;
  {
    const std::lock_guard lock(worldMutex);
    parent = world.lock();
  }
  if (!globalRanks.empty() && parent != nullptr && !parent->aborted()) {
    host_ = parent->subset({globalRanks.begin(), globalRanks.end()}, timeout);
    return;
  }
  host_ = Communicator::create(*store, rank, size, timeout);
  if (!globalRanks.empty()) return;
  const std::lock_guard lock(worldMutex);
  world = host_;
}

MoecclBackend::~MoecclBackend() { shutdown(); }

void MoecclBackend::abort() {
  if (cuda_) cuda_->abort();
  host_->abort();
}

void MoecclBackend::shutdown() {
  if (cuda_) cuda_->close();
  host_->close();
}

std::shared_ptr<Communicator> MoecclBackend::subset(const std::vector<int>& ranks) const {
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  return host_->subset(ranks, timeout_);
}

std::string MoecclBackend::where() const {
  std::string text = "rank " + std::to_string(getRank()) + " of " + std::to_string(getSize());
  if (globalRanks_.empty()) return text;
  text += ", group " + group_ + " of the global ranks";
  for (const int64_t rank : globalRanks_) text += ' ' + std::to_string(rank);
  return text;
}

Communicator& MoecclBackend::communicatorFor(const Needs& needs,
                                             std::shared_ptr<Communicator>* holder,
                                             moecclStream_t* stream) {
  const at::Tensor* any = needs.outputs.empty() ? nullptr : &needs.outputs[0];
  if (any == nullptr && !needs.tensors.empty()) any = &needs.tensors[0];
  const bool onCuda = any != nullptr && any->is_cuda();
  TORCH_CHECK(any == nullptr || any->is_cpu() || onCuda, "moeccl serves tensors on CPUs and CUDA");
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  if (!onCuda) {
    *holder = host_;
    return *host_;
  }
  const c10::DeviceGuard guard(any->device());
  if (!cuda_) cuda_ = host_->onCuda(getRank(), getSize(), timeout_);
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  *stream = device.getStream(any->device()).native_handle();
  *holder = cuda_;
  return *cuda_;
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::newWork(c10d::OpType type, Needs needs, bool onCuda) {
  std::vector<c10::Device> devices;
  if (onCuda)
    devices.push_back(needs.outputs.empty() ? needs.tensors[0].device()
                                            : needs.outputs[0].device());
  return c10::make_intrusive<MoecclWork>(getRank(), type, where(), sequence_, std::move(needs),
                                         std::move(devices));
}

// Alone: collectives that the caller does not wait for run on one stream, others in the caller's
// own thread. On CUDA all are on the current stream. In a coalesced group all are noted, and run at
// its end.
c10::intrusive_ptr<c10d::Work> MoecclBackend::run(c10d::OpType type,
                                                  std::chrono::milliseconds timeout, bool async,
                                                  Needs needs, const Launch& launch) {
  ++sequence_;
  std::shared_ptr<Communicator> communicator;
  moecclStream_t stream = nullptr;
  communicatorFor(needs, &communicator, &stream);
  const bool onCuda = communicator == cuda_;
  communicator->setTimeout(timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
  if (coalescing_) {
    check(launch(communicator->comm(), onCuda ? stream : coalescing_->stream), communicator->comm(),
          where());
    coalescing_->onCuda |= onCuda;
    const auto move = [](auto& from, auto& to) {
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    move(needs.tensors, coalescing_->needs.tensors);
    move(needs.after, coalescing_->needs.after);
    move(needs.outputs, coalescing_->needs.outputs);
    auto noted = newWork(type, {}, false);
    static_cast<MoecclWork*>(noted.get())->finishNow();
    return noted;
  }
  if (async && !onCuda) stream = communicator->stream();
  check(launch(communicator->comm(), stream), communicator->comm(), where());
  auto work = newWork(type, std::move(needs), onCuda);
  auto* const started = static_cast<MoecclWork*>(work.get());
  if (onCuda || !async)
    started->finishNow();
  else
    started->finishWith(communicator, stream, false);
  return work;
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::message(c10d::OpType type, Needs needs,
                                                      const Launch& launch) {
  std::shared_ptr<Communicator> communicator;
  moecclStream_t stream = nullptr;
  communicatorFor(needs, &communicator, &stream);
  if (coalescing_ || communicator == cuda_)
    return run(type, c10d::kUnsetTimeout, true, std::move(needs), launch);
  communicator->setTimeout(timeout_);
  stream = communicator->takeStream();
  check(launch(communicator->comm(), stream), communicator->comm(), where());
  auto work = newWork(type, std::move(needs), false);
  static_cast<MoecclWork*>(work.get())->finishWith(communicator, stream, true);
  return work;
}

void MoecclBackend::startCoalescing() {
  TORCH_CHECK(!coalescing_, "coalesced calls do not nest");
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  coalescing_.emplace();
  coalescing_->stream = host_->takeStream();
  moecclGroupStart();
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "there are no coalesced calls to end");
  Coalescing all = std::move(*coalescing_);
  coalescing_.reset();
  check(moecclGroupEnd(), nullptr, where());
  if (all.onCuda) host_->giveBack(all.stream);
  auto work = newWork(c10d::OpType::COALESCED, std::move(all.needs), all.onCuda);
  auto* const started = static_cast<MoecclWork*>(work.get());
  if (all.onCuda)
    started->finishNow();
  else
    started->finishWith(host_, all.stream, true);
  return work;
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::broadcast(Tensors& tensors,
                                                        const c10d::BroadcastOptions& options) {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  void* const data = output(tensor, true, &needs);
  const auto root = static_cast<int>(options.rootRank);
  return run(c10d::OpType::BROADCAST, options.timeout, options.asyncOp, std::move(needs),
             [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
               return moecclBroadcast(data, data, bytes, kBytes, root, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allreduce(Tensors& tensors,
                                                        const c10d::AllreduceOptions& options) {
  only(tensors);
  c10d::AllreduceCoalescedOptions same;
  static_cast<c10d::AllreduceOptions&>(same) = options;
  return allreduce_coalesced(tensors, same);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Needs needs;
  struct Part {
    void* data;
    size_t count;
    Numbers numbers;
  };
  std::vector<Part> parts;
  for (const at::Tensor& tensor : tensors) {
    const Numbers numbers = numbersOf(tensor, options.reduceOp);
    const auto [data, count] = inPlace(tensor, numbers, &needs);
    parts.push_back({data, count, numbers});
  }
  return run(c10d::OpType::ALLREDUCE, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               InGroup group(parts.size());
               for (const Part& part : parts)
                 group.add(moecclAllReduce(part.data, part.data, part.count, part.numbers.type,
                                           part.numbers.op, comm, stream));
               return group.end();
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce(Tensors& tensors,
                                                     const c10d::ReduceOptions& options) {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  const Numbers numbers = numbersOf(tensor, options.reduceOp);
  const auto [data, count] = inPlace(tensor, numbers, &needs);
  const auto root = static_cast<int>(options.rootRank);
  return run(c10d::OpType::REDUCE, options.timeout, options.asyncOp, std::move(needs),
             [=, data = data, count = count](moecclComm_t comm, moecclStream_t stream) {
               return moecclReduce(data, data, count, numbers.type, numbers.op, root, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather(TensorLists& outputTensors,
                                                        Tensors& inputTensors,
                                                        const c10d::AllgatherOptions& options) {
  only(inputTensors);
  return gatherLists({only(outputTensors)}, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather_coalesced(
    TensorLists& outputTensors, Tensors& inputTensors, const c10d::AllgatherOptions& options) {
  // A list for each rank, of what it gives.
  TORCH_CHECK(static_cast<int>(outputTensors.size()) == getSize(), "there are ",
              outputTensors.size(), " lists of outputs for ", getSize(), " ranks");
  TensorLists byInput(inputTensors.size());
  for (const Tensors& ofRank : outputTensors) {
    TORCH_CHECK(ofRank.size() == inputTensors.size(), "a list of outputs has ", ofRank.size(),
                " tensors for ", inputTensors.size(), " inputs");
    for (size_t i = 0; i < ofRank.size(); ++i) byInput[i].push_back(ofRank[i]);
  }
  return gatherLists(byInput, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::gatherLists(TensorLists outputTensors,
                                                          Tensors& inputTensors,
                                                          const c10d::AllgatherOptions& options) {
  Needs needs;
  struct Part {
    void* in;
    size_t bytes;
    Parts out;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < inputTensors.size(); ++i) {
    TORCH_CHECK(static_cast<int>(outputTensors[i].size()) == getSize(), "there are ",
                outputTensors[i].size(), " outputs for ", getSize(), " ranks");
    void* const in = input(inputTensors[i], &needs);
    parts.push_back({in, inputTensors[i].nbytes(), outputs(outputTensors[i], 1, &needs)});
  }
  return run(
      c10d::OpType::ALLGATHER, options.timeout, options.asyncOp, std::move(needs),
      [=](moecclComm_t comm, moecclStream_t stream) {
        InGroup group(parts.size());
        for (const Part& part : parts)
          group.add(moecclAllGatherv(part.in, part.bytes, part.out.base, part.out.counts.data(),
                                     part.out.displs.data(), kBytes, comm, stream));
        return group.end();
      });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::_allgather_base(
    at::Tensor& outputTensor, at::Tensor& inputTensor, const c10d::AllgatherOptions& options) {
  Tensors outputTensors{outputTensor}, inputTensors{inputTensor};
  return allgather_into_tensor_coalesced(outputTensors, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather_into_tensor_coalesced(
    Tensors& outputTensors, Tensors& inputTensors, const c10d::AllgatherOptions& options) {
  Needs needs;
  struct Part {
    void *in, *out;
    size_t bytes;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < inputTensors.size(); ++i) {
    const size_t bytes = inputTensors[i].nbytes();
    TORCH_CHECK(outputTensors[i].nbytes() == bytes * static_cast<size_t>(getSize()),
                "the output has ", outputTensors[i].nbytes(), " bytes; it must have ", getSize(),
                " times the ", bytes, " of the input");
    void* const in = input(inputTensors[i], &needs);
    parts.push_back({in, output(outputTensors[i], false, &needs), bytes});
  }
  return run(c10d::OpType::_ALLGATHER_BASE, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               InGroup group(parts.size());
               for (const Part& part : parts)
                 group.add(moecclAllGather(part.in, part.out, part.bytes, kBytes, comm, stream));
               return group.end();
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::gather(TensorLists& outputTensors,
                                                     Tensors& inputTensors,
                                                     const c10d::GatherOptions& options) {
  Needs needs;
  const at::Tensor& tensor = only(inputTensors);
  const auto root = static_cast<int>(options.rootRank);
  void* const in = input(tensor, &needs);
  at::Tensor flat;
  if (getRank() == root) {
    const Tensors& all = only(outputTensors);
    TORCH_CHECK(static_cast<int>(all.size()) == getSize(), "there are ", all.size(),
                " outputs for ", getSize(), " ranks");
    flat = at::empty({getSize(), tensor.numel()}, tensor.options());
    for (int rank = 0; rank < getSize(); ++rank) {
      const at::Tensor to = all[static_cast<size_t>(rank)];
      TORCH_CHECK(to.numel() == tensor.numel(), "output ", rank, " has ", to.numel(),
                  " elements, the input ", tensor.numel());
      needs.outputs.push_back(to);
      needs.after.emplace_back([=] {
        const at::NoGradGuard guard;
        to.copy_(flat[rank].view_as(to));
      });
    }
    needs.tensors.push_back(flat);
  }
  void* const out = flat.defined() ? flat.data_ptr() : nullptr;
  return run(c10d::OpType::GATHER, options.timeout, options.asyncOp, std::move(needs),
             [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
               return moecclGather(in, out, bytes, kBytes, root, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::scatter(Tensors& outputTensors,
                                                      TensorLists& inputTensors,
                                                      const c10d::ScatterOptions& options) {
  Needs needs;
  const at::Tensor& tensor = only(outputTensors);
  const auto root = static_cast<int>(options.rootRank);
  void* in = nullptr;
  if (getRank() == root) {
    const Tensors& all = only(inputTensors);
    TORCH_CHECK(static_cast<int>(all.size()) == getSize(), "there are ", all.size(), " inputs for ",
                getSize(), " ranks");
    Tensors flat;
    for (const at::Tensor& each : all) {
      TORCH_CHECK(each.numel() == tensor.numel(), "an input has ", each.numel(),
                  " elements, the output ", tensor.numel());
      flat.push_back(each.reshape({-1}));
    }
    in = input(at::cat(flat), &needs);
  }
  void* const out = output(tensor, false, &needs);
  return run(c10d::OpType::SCATTER, options.timeout, options.asyncOp, std::move(needs),
             [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
               return moecclScatter(in, out, bytes, kBytes, root, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce_scatter(
    Tensors& outputTensors, TensorLists& inputTensors, const c10d::ReduceScatterOptions& options) {
  Needs needs;
  const at::Tensor& tensor = only(outputTensors);
  const Tensors& all = only(inputTensors);
  TORCH_CHECK(static_cast<int>(all.size()) == getSize(), "there are ", all.size(), " inputs for ",
              getSize(), " ranks");
  const at::Tensor& own = all[static_cast<size_t>(getRank())];
  TORCH_CHECK(own.numel() == tensor.numel(), "input ", getRank(), " has ", own.numel(),
              " elements, the output ", tensor.numel());
  const Numbers numbers = numbersOf(tensor, options.reduceOp);
  const Parts in = inputs(all, elementBytes(tensor) / numbers.perElement, &needs);
  void* const out = output(tensor, false, &needs);
  return run(c10d::OpType::REDUCE_SCATTER, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               return moecclReduceScatterv(in.base, in.counts.data(), in.displs.data(), out,
                                           numbers.type, numbers.op, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::_reduce_scatter_base(
    at::Tensor& outputTensor, at::Tensor& inputTensor, const c10d::ReduceScatterOptions& options) {
  Tensors outputTensors{outputTensor}, inputTensors{inputTensor};
  return reduce_scatter_tensor_coalesced(outputTensors, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputTensors, Tensors& inputTensors, const c10d::ReduceScatterOptions& options) {
  Needs needs;
  struct Part {
    void *in, *out;
    size_t count;
    Numbers numbers;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < inputTensors.size(); ++i) {
    const at::Tensor& tensor = outputTensors[i];
    TORCH_CHECK(inputTensors[i].numel() == tensor.numel() * getSize(), "the input has ",
                inputTensors[i].numel(), " elements; it must have ", getSize(), " times the ",
                tensor.numel(), " of the output");
    TORCH_CHECK(inputTensors[i].scalar_type() == tensor.scalar_type(),
                "output and input differ in type: ", tensor.scalar_type(), " and ",
                inputTensors[i].scalar_type());
    const Numbers numbers = numbersOf(tensor, options.reduceOp);
    void* const in = input(inputTensors[i], &needs);
    parts.push_back({in, output(tensor, false, &needs),
                     static_cast<size_t>(tensor.numel()) * numbers.perElement, numbers});
  }
  return run(c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               InGroup group(parts.size());
               for (const Part& part : parts)
                 group.add(moecclReduceScatter(part.in, part.out, part.count, part.numbers.type,
                                               part.numbers.op, comm, stream));
               return group.end();
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::alltoall_base(at::Tensor& outputTensor,
                                                            at::Tensor& inputTensor,
                                                            std::vector<int64_t>& outputSplits,
                                                            std::vector<int64_t>& inputSplits,
                                                            const c10d::AllToAllOptions& options) {
  Needs needs;
  const std::vector<size_t> out = countsOf(outputTensor, outputSplits, getSize());
  const std::vector<size_t> in = countsOf(inputTensor, inputSplits, getSize());
  TORCH_CHECK(outputTensor.scalar_type() == inputTensor.scalar_type(),
              "output and input differ in type: ", outputTensor.scalar_type(), " and ",
              inputTensor.scalar_type());
  const bool even = outputSplits.empty() && inputSplits.empty();
  TORCH_CHECK(!even || out == in, "the output has ", outputTensor.numel(), " elements, the input ",
              inputTensor.numel(), "; without split sizes both must have the same number");
  const size_t unit = elementBytes(inputTensor);
  void* const from = input(inputTensor, &needs);
  void* const to = output(outputTensor, false, &needs);
  return run(c10d::OpType::ALLTOALL_BASE, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               if (even) return moecclAllToAll(from, to, in[0] * unit, kBytes, comm, stream);
               const auto bytes = [unit](std::vector<size_t> counts) {
                 for (size_t& count : counts) count *= unit;
                 return counts;
               };
               const auto sends = bytes(in), receives = bytes(out);
               return moecclAllToAllv(from, sends.data(), behindOneAnother(sends).data(), to,
                                      receives.data(), behindOneAnother(receives).data(), kBytes,
                                      comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::alltoall(Tensors& outputTensors,
                                                       Tensors& inputTensors,
                                                       const c10d::AllToAllOptions& options) {
  Needs needs;
  for (const Tensors* tensors : {&outputTensors, &inputTensors})
    TORCH_CHECK(static_cast<int>(tensors->size()) == getSize(), "there are ", tensors->size(),
                " tensors for ", getSize(), " ranks");
  const Parts in = inputs(inputTensors, 1, &needs), out = outputs(outputTensors, 1, &needs);
  return run(c10d::OpType::ALLTOALL, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               return moecclAllToAllv(in.base, in.counts.data(), in.displs.data(), out.base,
                                      out.counts.data(), out.displs.data(), kBytes, comm, stream);
             });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::send(Tensors& tensors, int peer, int tag) {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  void* const data = input(tensor, &needs);
  return message(c10d::OpType::SEND, std::move(needs),
                 [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
                   return moecclSend(data, bytes, kBytes, peer, tag, comm, stream);
                 });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::recv(Tensors& tensors, int peer, int tag) {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  void* const data = output(tensor, false, &needs);
  return message(c10d::OpType::RECV, std::move(needs),
                 [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
                   return moecclRecv(data, bytes, kBytes, peer, tag, comm, stream);
                 });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::recvAnysource(Tensors& tensors, int tag) {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  void* const data = output(tensor, false, &needs);
  needs.source = std::make_shared<int>(-1);
  int* const source = needs.source.get();
  return message(c10d::OpType::RECVANYSOURCE, std::move(needs),
                 [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
                   return moecclRecvAny(data, bytes, kBytes, tag, source, comm, stream);
                 });
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::barrier(const c10d::BarrierOptions& options) {
  return run(c10d::OpType::BARRIER, options.timeout, options.asyncOp, {},
             [](moecclComm_t comm, moecclStream_t stream) { return moecclBarrier(comm, stream); });
}

// Everybody tells rank 0, which knows who is missing, and lets all go.
void MoecclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool waitAllRanks) {
  TORCH_CHECK(!host_->aborted(), "[", where(), "] the process group was aborted");
  constexpr int32_t kTag = -0x6d6f6e;
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
  const moecclComm_t comm = host_->comm();
  host_->setTimeout(timeout);
  char here = 1;
  if (getRank() != 0) {
    check(moecclSend(&here, 1, kBytes, 0, kTag, comm, nullptr), comm, where());
    return check(moecclRecv(&here, 1, kBytes, 0, kTag, comm, nullptr), comm, where());
  }
  std::vector<char> come(static_cast<size_t>(getSize()));
  moecclGroupStart();
  for (int rank = 1; rank < getSize(); ++rank)
    check(moecclRecv(&come[static_cast<size_t>(rank)], 1, kBytes, rank, kTag, comm, nullptr), comm,
          where());
  if (moecclGroupEnd() != moecclSuccess) {
    std::string missing;
    int count = 0;
    for (int rank = 1; rank < getSize(); ++rank)
      if (come[static_cast<size_t>(rank)] == 0 && (waitAllRanks || count == 0)) {
        missing += (count > 0 ? ", " : "") + std::to_string(rank);
        ++count;
      }
    C10_THROW_ERROR(DistBackendError, "[" + where() + "] Rank" + (count == 1 ? " " : "s ") +
                                          missing + " failed to pass monitoredBarrier in " +
                                          std::to_string(timeout.count()) +
                                          " ms: " + moecclGetLastError(comm));
  }
  moecclGroupStart();
  for (int rank = 1; rank < getSize(); ++rank)
    check(moecclSend(&here, 1, kBytes, rank, kTag, comm, nullptr), comm, where());
  check(moecclGroupEnd(), comm, where());
}

}  // namespace moeccl::torch

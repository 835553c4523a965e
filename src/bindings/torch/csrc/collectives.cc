// The collectives of the backend.
#include <numeric>

#include "backend.h"

namespace moeccl::torch {
namespace {

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

c10::intrusive_ptr<c10d::Work> MoecclBackend::broadcast(Tensors& tensors,
                                                        const c10d::BroadcastOptions& options) try {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  void* const data = output(tensor, true, &needs);
  const auto root = static_cast<int>(options.rootRank);
  return run(c10d::OpType::BROADCAST, options.timeout, options.asyncOp, std::move(needs),
             [=, bytes = tensor.nbytes()](moecclComm_t comm, moecclStream_t stream) {
               return moecclBroadcast(data, data, bytes, kBytes, root, comm, stream);
             });
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allreduce(Tensors& tensors,
                                                        const c10d::AllreduceOptions& options) {
  only(tensors);
  c10d::AllreduceCoalescedOptions same;
  static_cast<c10d::AllreduceOptions&>(same) = options;
  return allreduce_coalesced(tensors, same);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) try {
  Needs needs;
  const Launch launch = allReduceOf(tensors, options.reduceOp, &needs);
  return run(c10d::OpType::ALLREDUCE, options.timeout, options.asyncOp, std::move(needs), launch);
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce(Tensors& tensors,
                                                     const c10d::ReduceOptions& options) try {
  Needs needs;
  const at::Tensor& tensor = only(tensors);
  const Numbers numbers = numbersOf(tensor, options.reduceOp);
  void* const data = output(tensor, true, &needs);
  const size_t count = static_cast<size_t>(tensor.numel()) * numbers.perElement;
  const auto root = static_cast<int>(options.rootRank);
  return run(c10d::OpType::REDUCE, options.timeout, options.asyncOp, std::move(needs),
             [=](moecclComm_t comm, moecclStream_t stream) {
               return moecclReduce(data, data, count, numbers.type, numbers.op, root, comm, stream);
             });
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather(TensorLists& outputTensors,
                                                        Tensors& inputTensors,
                                                        const c10d::AllgatherOptions& options) try {
  only(inputTensors);
  return gatherLists({only(outputTensors)}, inputTensors, options);
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather_coalesced(
    TensorLists& outputTensors, Tensors& inputTensors, const c10d::AllgatherOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
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
      eachOf(std::move(parts), [](const Part& part, moecclComm_t comm, moecclStream_t stream) {
        return moecclAllGatherv(part.in, part.bytes, part.out.base, part.out.counts.data(),
                                part.out.displs.data(), kBytes, comm, stream);
      }));
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::_allgather_base(
    at::Tensor& outputTensor, at::Tensor& inputTensor, const c10d::AllgatherOptions& options) {
  Tensors outputTensors{outputTensor}, inputTensors{inputTensor};
  return allgather_into_tensor_coalesced(outputTensors, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::allgather_into_tensor_coalesced(
    Tensors& outputTensors, Tensors& inputTensors, const c10d::AllgatherOptions& options) try {
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
  return run(
      c10d::OpType::_ALLGATHER_BASE, options.timeout, options.asyncOp, std::move(needs),
      eachOf(std::move(parts), [](const Part& part, moecclComm_t comm, moecclStream_t stream) {
        return moecclAllGather(part.in, part.out, part.bytes, kBytes, comm, stream);
      }));
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::gather(TensorLists& outputTensors,
                                                     Tensors& inputTensors,
                                                     const c10d::GatherOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::scatter(Tensors& outputTensors,
                                                      TensorLists& inputTensors,
                                                      const c10d::ScatterOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce_scatter(
    Tensors& outputTensors, TensorLists& inputTensors,
    const c10d::ReduceScatterOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::_reduce_scatter_base(
    at::Tensor& outputTensor, at::Tensor& inputTensor, const c10d::ReduceScatterOptions& options) {
  Tensors outputTensors{outputTensor}, inputTensors{inputTensor};
  return reduce_scatter_tensor_coalesced(outputTensors, inputTensors, options);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputTensors, Tensors& inputTensors, const c10d::ReduceScatterOptions& options) try {
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
  return run(
      c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout, options.asyncOp, std::move(needs),
      eachOf(std::move(parts), [](const Part& part, moecclComm_t comm, moecclStream_t stream) {
        return moecclReduceScatter(part.in, part.out, part.count, part.numbers.type,
                                   part.numbers.op, comm, stream);
      }));
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::alltoall_base(
    at::Tensor& outputTensor, at::Tensor& inputTensor, std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits, const c10d::AllToAllOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
}

c10::intrusive_ptr<c10d::Work> MoecclBackend::alltoall(Tensors& outputTensors,
                                                       Tensors& inputTensors,
                                                       const c10d::AllToAllOptions& options) try {
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
} catch (const std::exception& error) {
  refuse(error);
}

}  // namespace moeccl::torch

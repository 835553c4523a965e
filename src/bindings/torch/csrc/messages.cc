// The messages of the backend, and the barriers that are made of them.
#include "backend.h"

namespace moeccl::torch {

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

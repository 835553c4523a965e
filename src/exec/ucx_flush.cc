// What is left in UCX of sends that are done.
//
// UCX (1.13) calls a send over TCP done when its last bytes are in a buffer of its own, up to 128 KiB of
// them; they go on to the kernel while somebody calls progress(). A rank that computes instead, or
// waits in another library, would keep its peers waiting for them.
//
// A flush is local but for the first of an endpoint: that one may want the peer to take part in
// connecting, who may be computing. So it is begun like the others, and not waited for.
#include "src/exec/ucx_transport.h"

namespace moeccl {

bool UcxTransport::handedOver(std::uint64_t* mark) {
  if (*mark == 0) *mark = sends_;
  if (*mark <= handedOver_ || closed_) return true;
  if (flushes_ == 0) flush();
  return *mark <= handedOver_;
}

void UcxTransport::flush() {
  flushing_ = sends_;
  ++flushes_;  // until all have been started
  std::erase_if(unflushed_, [this](int rank) {
    Peer& to = peer(rank);
    if (to.endpoint && to.flush == Peer::Flush::first) return false;
    to.unflushed = false;
    if (to.endpoint) flush(to);
    return true;
  });
  endFlush();
}

void UcxTransport::flush(Peer& to) {
  const bool isFirst = to.flush == Peer::Flush::none;
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = isFirst ? &UcxTransport::firstFlushed : &UcxTransport::flushed;
  param.user_data = isFirst ? static_cast<void*>(&to) : this;
  if (isFirst) {
    to.flush = Peer::Flush::first;
    ++firstFlushes_;
  } else {
    ++flushes_;
  }
  // The callback may come before the call returns. What cannot be flushed has failed, and its peer is lost.
  if (UCS_PTR_IS_PTR(ucp_ep_flush_nbx(to.endpoint.get(), &param))) return;
  if (isFirst)
    endFirstFlush(to);
  else
    --flushes_;
}

void UcxTransport::flushed(void* request, ucs_status_t, void* transport) {
  ucp_request_free(request);
  static_cast<UcxTransport*>(transport)->endFlush();
}

void UcxTransport::endFlush() {
  if (--flushes_ == 0) handedOver_ = flushing_;
}

void UcxTransport::firstFlushed(void* request, ucs_status_t, void* peer) {
  ucp_request_free(request);
  Peer& to = *static_cast<Peer*>(peer);
  to.transport->endFirstFlush(to);
}

void UcxTransport::endFirstFlush(Peer& to) {
  to.flush = Peer::Flush::known;
  --firstFlushes_;
}

}  // namespace moeccl

// What is left in UCX of sends that are done.
//
// UCX (1.13) calls a send over TCP done when its last bytes are in a buffer of its own, up to 128 KiB of
// them; they go on to the kernel while somebody calls progress(). A rank that computes instead, or
// waits in another library, would keep its peers waiting for them.
//
// A flush of the worker tells when nothing is left, and costs nothing where that is so at once, as mostly
// (ucx_settings.cc; a flush of an endpoint would wait for the peer to answer, who may have left its call).
// But it waits for what other calls have sent, too, perhaps to a rank that will not read that for long.
// So where other sends to the same peer are under way, or the flush takes a while, a marker is sent behind
// the data, a short message: once UCX has taken that, all before it is with the kernel, and the marker itself
// may be late. What another call sends to the same peer may still get before the marker, and be waited for.
#include <algorithm>

#include "src/exec/ucx_transport.h"

namespace moeccl {

bool UcxTransport::handedOver(int rank, std::uint64_t* mark) {
  Peer& to = peer(rank);
  const Handover& handover = to.handover;
  if (*mark == 0) *mark = handover.last;
  const auto isOver = [&] { return *mark <= std::max(left_, handover.left); };
  if (closed_ || to.gone || isOver()) return true;
  if (!flushing_) flush();
  if (*mark > handover.marked && !isOver() &&
      (!to.pending.empty() || Clock::now() - flushBegan_ > kPatience))
    this->mark(to);
  return isOver();
}

void UcxTransport::flush() {
  flushing_ = true;
  flushBegan_ = Clock::now();
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::flushed;
  param.user_data = this;
  // What cannot be flushed has failed, and its peer is lost.
  if (!UCS_PTR_IS_PTR(ucp_worker_flush_nbx(worker_.get(), &param))) endFlush();
}

void UcxTransport::flushed(void* request, ucs_status_t, void* transport) {
  ucp_request_free(request);
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  self.endFlush();
  self.hasFlushed_ = true;
}

void UcxTransport::endFlush() {
  left_ = sends_;
  flushing_ = false;
}

void UcxTransport::mark(Peer& to) {
  Control& marker = newControl(Control::Kind::marker);
  marker.marks = &to.handover;
  marker.last = to.handover.marked = to.handover.last;
  post(marker, to);
  release(marker);
}

}  // namespace moeccl

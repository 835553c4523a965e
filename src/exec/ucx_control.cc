#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "src/exec/ucx_transport.h"
#include "src/text.h"

namespace moeccl {
namespace {

constexpr unsigned kControlId = 0;  // of our active messages

}  // namespace

void UcxTransport::setControlHandler() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kControlId;
  handler.cb = &UcxTransport::controlArrived;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &handler);
  if (status != UCS_OK)
    throw std::runtime_error(
        stringf("rank %d: UCX: active messages: %s", rank_, ucs_status_string(status)));
}

// UCX (1.13) sends short messages before it has heard from the peer, others afterwards. A marker must leave
// while the peer does nothing. A goodbye that leaves so soon lets its sender end, to whom the peer would then
// connect: of 16 ranks of a node that closed together, in one of eight jobs.
std::size_t UcxTransport::bytesOf(Control::Kind kind) {
  return kind == Control::Kind::marker ? offsetof(Control::Message, notice)
                                       : sizeof(Control::Message);
}

ucs_status_t UcxTransport::controlArrived(void* transport, const void*, std::size_t, void* data,
                                          std::size_t bytes, const ucp_am_recv_param_t*) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  Control::Message message;
  if (bytes != sizeof message) return UCS_OK;  // a marker says nothing
  std::memcpy(&message, data, sizeof message);
  if (message.source < 0 || message.source >= self.ranks_) return UCS_OK;
  switch (message.kind) {
    case Control::Kind::notice:
      self.notices_.push_back(message.notice);
      break;
    case Control::Kind::goodbye:
      if (message.round >= 0 && message.round < kGoodbyeRounds)
        self.goodbyes_.set(static_cast<std::size_t>(message.round));
      break;
    case Control::Kind::gone:
      self.losses_.push_back({message.source, "it has given up the connection"});
      break;
    case Control::Kind::refuse:
      self.refused_.push_back(message.tag);
      break;
    case Control::Kind::marker:
      break;
  }
  return UCS_OK;
}

UcxTransport::Control& UcxTransport::newControl(Control::Kind kind) {
  controls_.emplace_front();
  Control& control = controls_.front();
  control.message = {.kind = kind, .source = rank_};
  control.transport = this;
  control.unsent = 1;  // until release()
  control.self = controls_.begin();
  return control;
}

void UcxTransport::post(Control& control, Peer& to) {
  const ucp_ep_h endpoint = reach(to);
  if (!endpoint) return;
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &UcxTransport::controlSent;
  param.user_data = &control;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  ++control.unsent;
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      endpoint, kControlId, nullptr, 0, &control.message, bytesOf(control.message.kind), &param);
  if (!UCS_PTR_IS_PTR(request)) --control.unsent;
}

void UcxTransport::release(Control& control) {
  if (--control.unsent > 0) return;
  if (control.marks != nullptr) control.marks->left = std::max(control.marks->left, control.last);
  control.transport->controls_.erase(control.self);
}

void UcxTransport::controlSent(void* request, ucs_status_t, void* control) {
  ucp_request_free(request);
  release(*static_cast<Control*>(control));
}

void UcxTransport::notify(const Notice& notice) {
  if (closed_) return;
  Control& control = newControl(Control::Kind::notice);
  control.message.notice = notice;
  for (Peer& peer : peers_)
    if (peer.rank != rank_) post(control, peer);
  release(control);
}

bool UcxTransport::nextNotice(Notice* notice) {
  if (notices_.empty()) return false;
  *notice = notices_.front();
  notices_.pop_front();
  return true;
}

}  // namespace moeccl

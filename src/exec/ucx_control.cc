// Sends control messages as active messages of UCX. Those that arrive are noted, for progress() to
// settle.
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "src/base/text.h"
#include "src/exec/ucx_transport.h"

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

ucs_status_t UcxTransport::controlArrived(void* transport, const void*, std::size_t, void* data,
                                          std::size_t bytes, const ucp_am_recv_param_t*) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  Control::Message message;
  if (bytes != sizeof message) return UCS_OK;
  std::memcpy(&message, data, sizeof message);
  if (message.source < 0 || message.source >= self.ranks_) return UCS_OK;
  switch (message.kind) {
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
    default:
      self.arrived_.push_back(message);
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
      endpoint, kControlId, nullptr, 0, &control.message, sizeof control.message, &param);
  if (!UCS_PTR_IS_PTR(request)) --control.unsent;
}

void UcxTransport::release(Control& control) {
  if (--control.unsent > 0) return;
  control.transport->controls_.erase(control.self);
}

void UcxTransport::controlSent(void* request, ucs_status_t, void* control) {
  ucp_request_free(request);
  release(*static_cast<Control*>(control));
}

}  // namespace moeccl

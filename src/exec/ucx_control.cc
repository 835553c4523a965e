#include <algorithm>
#include <cstring>

#include "src/exec/ucx_transport.h"
#include "src/text.h"

namespace moeccl {
namespace {

constexpr unsigned kControlId = 0;  // of our active messages
// An abrupt close tells those it is connected to, as far as that needs no waiting.
constexpr std::chrono::milliseconds kFarewell{10};

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
  switch (message.kind) {
    case Control::Kind::notice:
      self.notices_.push_back(message.notice);
      break;
    case Control::Kind::goodbye:
      self.goodbyes_.set(static_cast<std::size_t>(message.round));
      break;
    case Control::Kind::gone:
      self.losses_.push_back({message.source, "it has given up the connection", false});
      break;
  }
  return UCS_OK;
}

UcxTransport::Control& UcxTransport::newControl(Control::Kind kind, int round) {
  controls_.emplace_front();
  Control& control = controls_.front();
  control.message = {kind, rank_, round, {}};
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
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      endpoint, kControlId, nullptr, 0, &control.message, sizeof control.message, &param);
  if (UCS_PTR_IS_PTR(request)) ++control.unsent;
}

void UcxTransport::release(Control& control) {
  if (--control.unsent == 0) control.transport->controls_.erase(control.self);
}

void UcxTransport::controlSent(void* request, ucs_status_t, void* control) {
  ucp_request_free(request);
  release(*static_cast<Control*>(control));
}

void UcxTransport::notify(const Notice& notice) {
  if (closed_) return;
  Control& control = newControl(Control::Kind::notice, 0);
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

template <typename Condition>
bool UcxTransport::progressUntil(Condition condition, Clock::time_point deadline) {
  while (!condition()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (!progress()) sleep(static_cast<int>(left));
  }
  return true;
}

// A dissemination barrier: in round k a rank tells the one 2^k above it and hears from the one 2^k
// below, so everybody has heard of everybody after log2(P) rounds and as many new connections.
// A rank that is gone, or has left because its own time had passed, is not waited for.
void UcxTransport::sayGoodbye(Clock::time_point deadline) {
  for (int round = 0, distance = 1; distance < ranks_; ++round, distance *= 2) {
    Peer& above = peer((rank_ + distance) % ranks_);
    Peer& below = peer((rank_ - distance + ranks_) % ranks_);
    Control& control = newControl(Control::Kind::goodbye, round);
    post(control, above);
    release(control);
    reach(below);
    const auto heard = [&] {
      return goodbyes_.test(static_cast<std::size_t>(round)) || below.gone;
    };
    if (!progressUntil(heard, deadline)) return;
  }
}

void UcxTransport::choreDone(void* request, UcxTransport& transport) {
  ucp_request_free(request);
  --transport.chores_;
}

// Waits until every endpoint has handed over what it was given.
void UcxTransport::flush(Clock::time_point deadline) {
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = [](void* request, ucs_status_t, void* transport) {
    choreDone(request, *static_cast<UcxTransport*>(transport));
  };
  param.user_data = this;
  if (UCS_PTR_IS_PTR(ucp_worker_flush_nbx(worker_.get(), &param))) ++chores_;
  progressUntil([this] { return chores_ == 0 && controls_.empty(); }, deadline);
}

// Messages that nobody received (after a failure) would be reported as leaks. A receive without
// room ends them, for their senders too.
void UcxTransport::dropUnexpected(Clock::time_point deadline) {
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv = [](void* request, ucs_status_t, const ucp_tag_recv_info_t*, void* transport) {
    choreDone(request, *static_cast<UcxTransport*>(transport));
  };
  param.user_data = this;
  ucp_tag_recv_info_t info;
  while (ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), 0, 0, 1, &info)) {
    const ucs_status_ptr_t request =
        ucp_tag_msg_recv_nbx(worker_.get(), nullptr, 0, message, &param);
    if (UCS_PTR_IS_PTR(request)) ++chores_;
  }
  progressUntil([this] { return chores_ == 0; }, deadline);
}

void UcxTransport::close(bool abrupt, int milliseconds) {
  if (closed_) return;
  const auto now = Clock::now();
  const auto deadline = now + std::chrono::milliseconds(milliseconds);
  if (abrupt) {
    Control& control = newControl(Control::Kind::gone, 0);
    for (Peer& peer : peers_)
      if (peer.endpoint && peer.rank != rank_) post(control, peer);
    release(control);
    progressUntil([this] { return controls_.empty(); }, std::max(deadline, now + kFarewell));
  } else {
    progressUntil([this] { return sendsInFlight_ == 0; }, deadline);
    if (!peers_.empty()) sayGoodbye(deadline);
    dropUnexpected(deadline);
    flush(deadline);
  }
  for (Peer& peer : peers_) {
    for (Transfer* transfer = peer.pending.front(); transfer;
         transfer = peer.pending.after(transfer))
      transfer->flight.cancelled = true;
    lose(peer, "closed");
  }
  // UCX minds a worker that is destroyed while closed endpoints still give back what they had.
  progressUntil([this] { return inFlight_ == 0 && chores_ == 0 && controls_.empty(); },
                Clock::now() + 3 * kDoomed);
  dropUnexpected(Clock::now());
  closed_ = true;
  worker_.reset();
}

}  // namespace moeccl

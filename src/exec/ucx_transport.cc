// Starts transfers with UCX, and ends them as UCX completes them.
#include "src/exec/ucx_transport.h"

#include "src/base/text.h"

namespace moeccl {
namespace {

// A running process looks for ended ones once in so many calls of progress().
constexpr unsigned kRoundsPerLook = 1024;
// From here on UCX (1.13) sends by rendezvous through shared memory.
constexpr std::size_t kRendezvous = 8256;

}  // namespace

void UcxTransport::send(int to, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) {
  transfer->flight = {.carrier = this,
                      .from = static_cast<const std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = to,
                      .isSend = true,
                      .inFlight = true};
  ++sendsInFlight_, ++inFlight_;
  Peer& receiver = peer(to);
  if (closed_ || !reach(receiver)) return finish(transfer, UCS_ERR_UNREACHABLE, 0);
  if (!mayBegin(receiver, *transfer)) return announce(receiver, transfer);
  begin(receiver, transfer);
}

void UcxTransport::begin(Peer& to, Transfer* send) {
  const Transfer::Flight& flight = send->flight;
  const ucp_ep_h endpoint = to.endpoint.get();
  ucp_request_param_t param;
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = &UcxTransport::sendDone;
  param.user_data = send;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  // UCX tells only where a large message is. Smaller ones, and pieces, wait until there is room.
  if (to.reads && flight.bytes >= kRendezvous) {
    started(send, ucp_tag_send_nbx(endpoint, flight.from, flight.bytes, flight.tag, &param));
    return;
  }
  // A short message leaves at once, if it finds room.
  ucp_request_param_t atOnce = param;
  atOnce.op_attr_mask |= UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  const ucs_status_ptr_t left =
      ucp_tag_send_nbx(endpoint, flight.from, flight.bytes, flight.tag, &atOnce);
  if (UCS_PTR_STATUS(left) != UCS_ERR_NO_RESOURCE) {
    started(send, left);
    return;
  }
  UcxLoans::Loan* const loan = loans_.begin(flight.from, flight.bytes);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
  param.datatype = loans_.datatype();
  started(send, ucp_tag_send_nbx(endpoint, loan, 1, flight.tag, &param), loan);
}

void UcxTransport::recv(int from, Tag tag, void* data, std::size_t bytes, Transfer* transfer) {
  transfer->flight = {.carrier = this,
                      .to = static_cast<std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = from,
                      .inFlight = true};
  ++inFlight_;
  if (closed_) return finish(transfer, UCS_ERR_UNREACHABLE, 0);
  // The message itself needs no endpoint, but without one the peer's end goes unnoticed.
  reach(peer(from));
  post(transfer);
}

void UcxTransport::post(Transfer* receive) {
  const Transfer::Flight& flight = receive->flight;
  Peer& sender = peer(flight.peer);
  ucp_request_param_t param;
  // UCX (1.13) tells the size of a message that is here already to the callback only.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = &UcxTransport::recvDone;
  param.user_data = receive;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  if (started(receive, ucp_tag_recv_nbx(worker_.get(), flight.to, flight.bytes, flight.tag, ~Tag{0},
                                        &param)) &&
      !sender.offers.empty())
    grantTo(sender, receive);
}

bool UcxTransport::started(Transfer* transfer, ucs_status_ptr_t request, UcxLoans::Loan* loan) {
  Transfer::Flight& flight = transfer->flight;
  if (!UCS_PTR_IS_PTR(request)) {
    loans_.end(loan);
    finish(transfer, UCS_PTR_STATUS(request), flight.bytes);
    return false;
  }
  if (flight.completed) {
    ucp_request_free(request);
    flight.completed = false;
    finish(transfer, static_cast<ucs_status_t>(flight.result), flight.bytes);
    return false;
  }
  *static_cast<RequestSpace*>(request) = {this, transfer, nullptr, loan};
  flight.request = request;
  Peer& with = peer(flight.peer);
  with.pending.pushBack(transfer);
  if (!with.gone) return true;
  cancelInFlight(transfer);
  return false;
}

void UcxTransport::sendDone(void* request, ucs_status_t status, void* transfer) {
  requestDone(request, status, 0, transfer);
}

void UcxTransport::recvDone(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                            void* transfer) {
  requestDone(request, status, info->length, transfer);
}

void UcxTransport::requestDone(void* request, ucs_status_t status, std::size_t bytes,
                               void* argument) {
  RequestSpace& space = *static_cast<RequestSpace*>(request);
  if (!space.transport) {  // from inside the call that starts the transfer; started() will see it
    Transfer::Flight& flight = static_cast<Transfer*>(argument)->flight;
    flight.completed = true;
    flight.result = status;
    if ((status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) && !flight.isSend)
      flight.bytes = bytes;
    return;
  }
  UcxTransport& self = *space.transport;
  Transfer* const transfer = space.transfer;
  if (space.unanswered != nullptr) --space.unanswered->unanswered;
  self.loans_.end(space.loan);
  space = {};
  ucp_request_free(request);
  if (!transfer) return;
  TransferList::remove(transfer);
  if (!transfer->flight.isSend && self.isRefused(transfer)) {
    self.owe(self.peer(transfer->flight.peer), bytes);
    return self.post(transfer);
  }
  self.finish(transfer, status, transfer->flight.isSend ? transfer->flight.bytes : bytes);
}

void UcxTransport::finish(Transfer* transfer, ucs_status_t status, std::size_t bytes) {
  Transfer::Flight& flight = transfer->flight;
  if (tcp_ && flight.isSend && status == UCS_OK && !flight.cancelled && !flight.completed &&
      !closed_) {
    flight.completed = true;
    return leaving_.pushBack(transfer);
  }
  flight.inFlight = false;
  --inFlight_;
  if (flight.isSend)
    --sendsInFlight_;
  else if (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED)
    owe(peer(flight.peer), bytes);
  // A cancelled send may have been refused, which looks like success.
  if (status == UCS_OK && !(flight.isSend && flight.cancelled))
    return transfer->done(transfer, TransferStatus::ok, bytes);
  if (status == UCS_ERR_MESSAGE_TRUNCATED)
    return transfer->done(transfer, TransferStatus::truncated, bytes);
  transfer->done(transfer, judge(transfer, status), 0);
}

TransferStatus UcxTransport::judge(Transfer* transfer, ucs_status_t status) {
  const Transfer::Flight& flight = transfer->flight;
  if (flight.cancelled || closed_) return TransferStatus::cancelled;
  const Peer& with = peer(flight.peer);
  // What UCX cancels by itself was on an endpoint that has failed, which it may tell only
  // afterwards.
  const bool unreachable =
      with.gone || status == UCS_ERR_CANCELED || status == UCS_ERR_CONNECTION_RESET ||
      status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_UNREACHABLE ||
      status == UCS_ERR_NOT_CONNECTED || status == UCS_ERR_REJECTED || status == UCS_ERR_IO_ERROR ||
      status == UCS_ERR_SHMEM_SEGMENT;  // of a process that has ended
  lastErrorTime_ = Clock::now();
  lastError_ = stringf("%s of %zu bytes %s %s: %s", flight.isSend ? "send" : "receive",
                       flight.bytes, flight.isSend ? "to" : "from", with.name.c_str(),
                       with.gone ? with.whyGone.c_str() : ucs_status_string(status));
  return unreachable ? TransferStatus::unreachable : TransferStatus::failed;
}

void UcxTransport::cancel(Transfer* transfer) {
  Transfer::Flight& flight = transfer->flight;
  if (!flight.inFlight || flight.cancelled) return;
  if (flight.completed) return complete(transfer);
  if (flight.id != 0) return withdraw(transfer);
  flight.cancelled = true;
  Peer& with = peer(flight.peer);
  if (flight.isSend && with.endpoint) {
    // UCX takes back no send. It ends when the peer refuses it, or together with the connection.
    Control& control = newControl(Control::Kind::refuse);
    control.message.tag = flight.tag;
    post(control, with);
    release(control);
  }
  cancelInFlight(transfer);
}

bool UcxTransport::unexpected(Tag value, Tag mask, Tag* found) {
  ucp_tag_recv_info_t info;
  if (closed_) return false;
  if (ucp_tag_probe_nb(worker_.get(), value, mask, 0, &info)) {
    *found = info.sender_tag;
    return true;
  }
  for (const Peer& each : peers_)
    for (const Offer& offer : each.offers)
      if (((offer.tag ^ value) & mask) == 0) {
        *found = offer.tag;
        return true;
      }
  return false;
}

bool UcxTransport::progress() {
  if (closed_) return false;
  bool anything = ucp_worker_progress(worker_.get()) != 0;
  moved_ |= anything;
  if (++rounds_ % kRoundsPerLook == 0) lookAfterProcesses();
  if (!arrived_.empty() || !owing_.empty()) settleCredit(), anything = true;
  if (!losses_.empty() || !cancelling_.empty() || !refused_.empty()) anything |= settle();
  if (!flushing_ && !(leaving_.empty() && flushed_.empty())) anything |= flush();
  return anything;
}

// UCX calls a send over TCP done when its last bytes are in a buffer of its own. They go on to the
// kernel while somebody calls progress(); a rank that computes instead, or waits in another
// library, would keep its peers waiting.
bool UcxTransport::flush() {
  bool anything = false;
  const auto complete = [&] {
    while (Transfer* transfer = flushed_.front()) this->complete(transfer), anything = true;
  };
  complete();
  flushed_.append(leaving_);
  if (flushed_.empty()) return anything;
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = [](void* request, ucs_status_t, void* self) {
    ucp_request_free(request);
    static_cast<UcxTransport*>(self)->flushing_ = false;
  };
  param.user_data = this;
  flushing_ = true;
  // What cannot be flushed has failed, and its peer is lost.
  if (UCS_PTR_IS_PTR(ucp_worker_flush_nbx(worker_.get(), &param))) return anything;
  flushing_ = false;
  complete();
  return true;
}

void UcxTransport::complete(Transfer* transfer) {
  TransferList::remove(transfer);
  finish(transfer, UCS_OK, transfer->flight.bytes);
}

}  // namespace moeccl

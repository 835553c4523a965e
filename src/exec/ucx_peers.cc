// Makes endpoints, notices the end of peers, and gives back the transfers that are cancelled or
// lost with them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "src/base/text.h"
#include "src/exec/ucx_transport.h"

namespace moeccl {
namespace {

// The most rounds of progress before a peer is given up. Others that go on sending must not prolong
// it for ever.
constexpr int kLastRounds = 10000;

// Transports by which one rank reads and writes another's memory, in UCX's words for a connection.
constexpr std::array kReading = {":cma/", ":knem/", ":xpmem/", ":rc_", ":dc_", ":ud_"};

}  // namespace

ucp_ep_h UcxTransport::reach(Peer& peer) {
  if (peer.gone) return nullptr;
  peer.reached = true;
  if (!peer.endpoint) makeEndpoint(peer);
  return peer.endpoint.get();
}

void UcxTransport::makeEndpoint(Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::endpointFailed;
  params.err_handler.arg = &peer;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &endpoint);
  if (status != UCS_OK) return lose(peer, stringf("connecting: %s", ucs_status_string(status)));
  peer.endpoint.reset(endpoint);
  const std::string connection = describeConnection(peer);
  peer.reads = std::ranges::any_of(kReading, [&](const char* transport) {
    return connection.find(transport) != std::string::npos;
  });
  if (!peer.elsewhere && peer.rank != rank_) processes_.add(peer.rank, peer.process);
}

void UcxTransport::endpointFailed(void* peer, ucp_ep_h, ucs_status_t status) {
  Peer& failed = *static_cast<Peer*>(peer);
  failed.transport->losses_.push_back({failed.rank, ucs_status_string(status), true});
}

void UcxTransport::lookAfterProcesses() {
  for (int rank; (rank = processes_.next()) >= 0;)
    losses_.push_back({rank, "the process has ended", true});
}

bool UcxTransport::settle() {
  if (peers_.empty()) return false;  // not connected yet; news of peers can wait
  bool anything = false;
  for (; !refused_.empty(); refused_.pop_back()) refuse(refused_.back());
  if (!losses_.empty()) {
    // What a peer sent before its end may be here already.
    for (int i = 0; i < kLastRounds && ucp_worker_progress(worker_.get()) != 0; ++i) {
    }
    while (!losses_.empty()) {
      const Loss loss = std::move(losses_.back());
      losses_.pop_back();
      lose(peer(loss.rank), loss.why);
      if (loss.broken) peer(loss.rank).endpoint.reset();
    }
    anything = true;
  }
  if (!cancelling_.empty()) {
    const Clock::time_point now = Clock::now();
    for (int rank : std::exchange(cancelling_, {})) {
      Peer& with = peer(rank);
      if (with.cancelled.empty()) continue;
      // UCX (1.13) gives back sends, and receives that are under way, only when the endpoint is
      // closed. But then it answers the peer, whose own wish to connect may still be under way,
      // under another name, and the peer abort()s. So a lost peer's endpoint that owes nothing
      // stays until the worker ends, which answers nobody any more.
      if (with.gone) with.endpoint.reset();
      cancelling_.push_back(rank);
      if (!with.gone && now >= with.sendsUntil) anything |= giveUpSends(with);
      if (with.cancelled.empty() || now < with.patience) continue;
      giveUpCancelled(with);
      anything = true;
    }
  }
  return anything;
}

void UcxTransport::lose(Peer& peer, const std::string& why) {
  if (peer.gone) return;
  peer.gone = true;
  peer.whyGone = why;
  peer.patience = Clock::now() + kGivingBack;
  while (Transfer* transfer = peer.pending.front()) cancelInFlight(transfer);
  while (Transfer* transfer = peer.announced.popFront()) finish(transfer, UCS_ERR_UNREACHABLE, 0);
  peer.offers.clear();
  // It takes nothing any more: nobody need wait until it does.
  for (TransferList* list : {&leaving_, &flushed_})
    for (Transfer* transfer = list->front(); transfer != nullptr;) {
      const bool mine = transfer->flight.peer == peer.rank;
      if (mine) complete(transfer);
      transfer = mine ? list->front() : list->after(transfer);
    }
}

void UcxTransport::lose(int rank, const std::string& why) { losses_.push_back({rank, why, true}); }

// Its process may live, so its endpoint is closed only where it owes something (see settle()).
void UcxTransport::leave(int rank, const std::string& why) { losses_.push_back({rank, why}); }

void UcxTransport::cancelInFlight(Transfer* transfer) {
  Peer& with = peer(transfer->flight.peer);
  if (with.cancelled.empty()) {
    const Clock::time_point now = Clock::now();
    with.sendsUntil = now + kRefusing;
    with.patience = now + (with.gone ? kGivingBack : kTakingBack);
  }
  TransferList::remove(transfer);
  with.cancelled.pushBack(transfer);
  // A receive without a message yet comes back from inside this call.
  if (!transfer->flight.isSend) ucp_request_cancel(worker_.get(), transfer->flight.request);
  if (!with.cancelled.empty() && std::ranges::find(cancelling_, with.rank) == cancelling_.end())
    cancelling_.push_back(with.rank);
}

// A send that the peer has not refused yet needs the connection, and its caller must not wait: the
// peer may compute. UCX keeps the request until the peer refuses it, or is gone.
bool UcxTransport::giveUpSends(Peer& peer) {
  TransferList sends, others;
  while (Transfer* transfer = peer.cancelled.popFront())
    (transfer->flight.isSend ? sends : others).pushBack(transfer);
  peer.cancelled.append(others);
  const bool any = !sends.empty();
  while (Transfer* transfer = sends.popFront()) {
    RequestSpace& space = *static_cast<RequestSpace*>(transfer->flight.request);
    space = {this, nullptr, &peer, space.loan};
    if (space.loan != nullptr) space.loan->giveBack();
    ++peer.unanswered;
    finish(transfer, UCS_ERR_CANCELED, 0);
  }
  return any;
}

void UcxTransport::giveUpCancelled(Peer& peer) {
  if (!peer.gone) {
    if (peer.endpoint) {
      Control& control = newControl(Control::Kind::gone);
      post(control, peer);
      release(control);
    }
    lose(peer, "a cancelled transfer could not be taken back");
    return;
  }
  while (Transfer* transfer = peer.cancelled.popFront()) {
    RequestSpace& space = *static_cast<RequestSpace*>(transfer->flight.request);
    space.transfer = nullptr;
    if (space.loan != nullptr) space.loan->giveBack();
    finish(transfer, UCS_ERR_UNREACHABLE, 0);
  }
}

// The sender has cancelled this message. If no receive has taken it, one without room ends it on
// both sides. A receive that has taken it waits for another message, as if it had never come: what
// comes need not be the sender's data any more.
void UcxTransport::refuse(Tag tag) {
  ucp_tag_recv_info_t info;
  if (ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), tag, ~Tag{0}, 1, &info)) {
    if (Peer* const sender = senderOf(tag)) owe(*sender, info.length);
    return drop(message);
  }
  Peer* const sender = senderOf(tag);
  if (sender == nullptr) return;
  for (Transfer* each = sender->pending.front(); each != nullptr;
       each = sender->pending.after(each))
    if (!each->flight.isSend && each->flight.tag == tag && !each->flight.withdrawn) {
      each->flight.withdrawn = true;
      return;
    }
}

// Whether the message that has ended this receive was one that its sender has cancelled.
bool UcxTransport::isRefused(Transfer* receive) {
  Transfer::Flight& flight = receive->flight;
  if (flight.cancelled || closed_ || peer(flight.peer).gone) return false;
  if (std::exchange(flight.withdrawn, false)) return true;
  const auto refused = std::ranges::find(refused_, flight.tag);
  if (refused == refused_.end()) return false;
  refused_.erase(refused);
  return true;
}

std::string UcxTransport::describeConnection(int rank) {
  return reach(peer(rank)) != nullptr ? describeConnection(peer(rank)) : "none";
}

std::string UcxTransport::describeConnection(const Peer& peer) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const stream = open_memstream(&text, &bytes);
  ucp_ep_print_info(peer.endpoint.get(), stream);
  std::fclose(stream);
  std::string description(text, bytes);
  std::free(text);
  return description;
}

}  // namespace moeccl

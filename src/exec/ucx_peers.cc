#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "src/exec/ucx_transport.h"
#include "src/text.h"

namespace moeccl {
namespace {

// Of progress, before a peer is given up. Others that go on sending must not prolong it for ever.
constexpr int kLastRounds = 10000;

}  // namespace

ucp_ep_h UcxTransport::reach(Peer& peer) {
  if (peer.endpoint) return peer.endpoint.get();
  if (peer.gone) return nullptr;

  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::endpointFailed;
  params.err_handler.arg = &peer;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &endpoint);
  if (status != UCS_OK) {
    lose(peer, stringf("connecting: %s", ucs_status_string(status)));
    return nullptr;
  }
  peer.endpoint.reset(endpoint);
  if (watchProcesses_ && peer.rank != rank_) processes_.add(peer.rank, peer.process);
  return endpoint;
}

void UcxTransport::endpointFailed(void* peer, ucp_ep_h, ucs_status_t status) {
  Peer& failed = *static_cast<Peer*>(peer);
  failed.transport->losses_.push_back({failed.rank, ucs_status_string(status), false});
}

void UcxTransport::lookAfterProcesses() {
  for (int rank; (rank = processes_.next()) >= 0;)
    losses_.push_back({rank, "the process has ended", false});
}

bool UcxTransport::settleLosses() {
  bool anything = false;
  if (!losses_.empty()) {
    // What a peer sent before its end may be here already.
    for (int i = 0; i < kLastRounds && ucp_worker_progress(worker_.get()) != 0; ++i) {
    }
    while (!losses_.empty()) {
      const Loss loss = std::move(losses_.back());
      losses_.pop_back();
      Peer& lost = peer(loss.rank);
      if (loss.ours && !lost.gone) {
        Control& control = newControl(Control::Kind::gone, 0);
        post(control, lost);
        release(control);
      }
      lose(lost, loss.why);
    }
    anything = true;
  }
  if (!dooming_.empty() && Clock::now() >= doom_) {
    const std::vector<int> ranks = std::exchange(dooming_, {});
    for (int rank : ranks) giveUpDoomed(peer(rank));
    anything = true;
  }
  return anything;
}

void UcxTransport::lose(Peer& peer, const std::string& why) {
  if (peer.gone) return;
  peer.gone = true;
  peer.whyGone = why;
  peer.endpoint.reset();
  while (Transfer* transfer = peer.pending.front()) doom(transfer);
}

void UcxTransport::doom(Transfer* transfer) {
  Peer& with = peer(transfer->flight.peer);
  TransferList::remove(transfer);
  with.doomed.pushBack(transfer);
  void* const request = transfer->flight.request;
  // A receive without a message yet comes back from inside this call.
  if (!transfer->flight.isSend) ucp_request_cancel(worker_.get(), request);
  if (with.doomed.empty()) return;
  if (std::ranges::find(dooming_, with.rank) == dooming_.end()) dooming_.push_back(with.rank);
  doom_ = Clock::now() + kDoomed;
}

void UcxTransport::giveUpDoomed(Peer& peer) {
  if (peer.doomed.empty()) return;
  if (!peer.gone) {
    // A cancelled receive, of which a part has arrived and more may: not before that is impossible.
    losses_.push_back({peer.rank, "a receive from it was cancelled", true});
    dooming_.push_back(peer.rank);
    doom_ = Clock::now() + kDoomed;
    return;
  }
  while (Transfer* transfer = peer.doomed.popFront()) {
    static_cast<RequestSpace*>(transfer->flight.request)->transfer = nullptr;
    finish(transfer, UCS_ERR_UNREACHABLE, 0);
  }
}

std::string UcxTransport::describeConnection(int rank) {
  const ucp_ep_h endpoint = reach(peer(rank));
  if (!endpoint) return "none";
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const stream = open_memstream(&text, &bytes);
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::string description(text, bytes);
  std::free(text);
  return description;
}

}  // namespace moeccl

// The end of a UCX transport.
#include <algorithm>
#include <cstdint>

#include "src/exec/ucx_transport.h"

namespace moeccl {
namespace {

// An abrupt close tells those it is connected to. That waits behind data that are on their way to
// them, and for peers that do nothing not longer than this.
constexpr std::chrono::milliseconds kFarewell{300};
// Time that UCX needs to give everything back, on a busy machine. Usually some rounds of progress.
constexpr std::chrono::milliseconds kSettling{500};

// How long the others are waited for once one is gone. The communicator has failed by that, and UCX
// (1.13) may never finish connections that came about meanwhile.
constexpr std::chrono::milliseconds kAfterLoss{1000};

// The longest sleep. UCX may miss to signal a message, and news of other ranks may wake another
// transport.
constexpr std::int64_t kLongestSleepMs = 20;

}  // namespace

template <typename Condition>
bool UcxTransport::progressUntil(Condition condition, Clock::time_point deadline) {
  while (!condition()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    whileClosing();
    if (!progress()) wait(static_cast<int>(std::min<std::int64_t>(left, kLongestSleepMs)));
  }
  return true;
}

// Waits for what others must do. True, too, where one is gone and they have had their time.
template <typename Condition>
bool UcxTransport::othersUntil(Condition condition, Clock::time_point deadline) {
  const auto isOver = [this] {
    if (othersUntil_ == Clock::time_point::max() && std::ranges::any_of(peers_, &Peer::gone))
      othersUntil_ = Clock::now() + kAfterLoss;
    return Clock::now() > othersUntil_;
  };
  return progressUntil([&] { return condition() || isOver(); }, deadline);
}

// A dissemination barrier: in round k a rank tells the one 2^k above it and hears from the one 2^k
// below, so everybody has heard of everybody after log2(P) rounds and as many new connections.
// A rank that is gone, or has left because its own time had passed, is not waited for.
bool UcxTransport::sayGoodbye(Clock::time_point deadline) {
  for (int round = 0, distance = 1; distance < ranks_; ++round, distance *= 2) {
    Peer& above = peer((rank_ + distance) % ranks_);
    Peer& below = peer((rank_ - distance + ranks_) % ranks_);
    Control& control = newControl(Control::Kind::goodbye);
    control.message.round = round;
    post(control, above);
    release(control);
    reach(below);
    const auto heard = [&] {
      dropUnexpected();
      return goodbyes_.test(static_cast<std::size_t>(round)) || below.gone;
    };
    if (!othersUntil(heard, deadline)) return false;
  }
  return true;
}

template <typename Start>
void UcxTransport::startChore(Start start) {
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = this;
  ++chores_;
  // The callback may come before the call returns.
  if (!UCS_PTR_IS_PTR(start(&param))) --chores_;
}

void UcxTransport::choreDone(void* request, void* transport) {
  ucp_request_free(request);
  --static_cast<UcxTransport*>(transport)->chores_;
}

bool UcxTransport::awaitChores(Clock::time_point deadline) {
  return progressUntil([this] { return chores_ == 0 && controls_.empty(); }, deadline);
}

// Hands over to the peers what has been sent.
void UcxTransport::flushEndpoints() {
  for (Peer& peer : peers_) {
    if (!peer.reached || !peer.endpoint || peer.gone) continue;
    startChore([&](ucp_request_param_t* param) {
      param->cb.send = [](void* request, ucs_status_t, void* self) { choreDone(request, self); };
      return ucp_ep_flush_nbx(peer.endpoint.get(), param);
    });
  }
}

// Completes once closed endpoints have given back what they had.
void UcxTransport::flushWorker() {
  startChore([&](ucp_request_param_t* param) {
    param->cb.send = [](void* request, ucs_status_t, void* self) { choreDone(request, self); };
    return ucp_worker_flush_nbx(worker_.get(), param);
  });
}

// Ends a message that nobody will receive, for its sender too: by a receive without room.
void UcxTransport::drop(ucp_tag_message_h message) {
  startChore([&](ucp_request_param_t* param) {
    param->cb.recv = [](void* request, ucs_status_t, const ucp_tag_recv_info_t*, void* self) {
      choreDone(request, self);
    };
    return ucp_tag_msg_recv_nbx(worker_.get(), nullptr, 0, message, param);
  });
}

UcxTransport::Peer* UcxTransport::senderOf(Tag tag) {
  int sender = sourceOf(tag);
  if (!sources_.empty())
    sender = static_cast<int>(std::ranges::find(sources_, sender) - sources_.begin());
  return !peers_.empty() && sender < ranks_ ? &peer(sender) : nullptr;
}

// Messages that nobody received (after a failure) would be reported as leaks.
bool UcxTransport::dropUnexpected() {
  refuseOffers();
  bool anything = false;
  ucp_tag_recv_info_t info;
  while (ucp_tag_message_h message = ucp_tag_probe_nb(worker_.get(), 0, 0, 1, &info)) {
    // A sender that has been given up must not take this for a success. It is connected, since its
    // message has come, so to close its endpoint is safe (see settle()).
    if (Peer* const sender = senderOf(info.sender_tag); sender != nullptr && sender->gone)
      sender->endpoint.reset();
    drop(message);
    anything = true;
  }
  return anything;
}

bool UcxTransport::drained() {
  dropUnexpected();
  return sendsInFlight_ == 0;
}

bool UcxTransport::close(bool abrupt, int milliseconds) {
  if (closed_) return true;
  bool inOrder = true;
  const auto now = Clock::now();
  const auto deadline = now + std::chrono::milliseconds(milliseconds);
  if (abrupt) {
    Control& control = newControl(Control::Kind::gone);
    for (Peer& peer : peers_)
      if (peer.reached && peer.endpoint && peer.rank != rank_) post(control, peer);
    release(control);
    progressUntil([this] { return controls_.empty(); }, std::max(deadline, now + kFarewell));
  } else {
    inOrder = progressUntil([this] { return drained(); }, deadline);
    if (!peers_.empty()) inOrder &= sayGoodbye(deadline);
    flushEndpoints();
    othersUntil([this] { return chores_ == 0 && controls_.empty(); }, deadline);
  }

  for (Peer& peer : peers_) {
    for (TransferList* list : {&peer.pending, &peer.announced})
      for (Transfer* transfer = list->front(); transfer; transfer = list->after(transfer))
        transfer->flight.cancelled = true;
    lose(peer, "closed");
    if (peer.unanswered > 0) peer.endpoint.reset();
  }
  const auto last = Clock::now() + kSettling;
  progressUntil(
      [this] {
        return inFlight_ == 0 &&
               std::ranges::all_of(peers_, [](const Peer& peer) { return peer.unanswered == 0; });
      },
      last);
  flushWorker();
  const auto awaitAll = [this](Clock::time_point until) {
    return awaitChores(until) && progressUntil([this] { return !flushing_; }, until);
  };
  // Endpoints that owe nothing are closed only when there is no other way (see settle()).
  bool settled = awaitAll(last - kGivingBack);
  if (!settled) {  // a message to a peer that does not answer
    for (Peer& peer : peers_) peer.endpoint.reset();
    flushWorker();
    settled = awaitAll(last);
  }
  while (settled && dropUnexpected()) {
    flushWorker();
    settled = awaitChores(last);
  }
  closed_ = true;
  // They end with the worker, or not at all.
  for (Peer& peer : peers_) static_cast<void>(peer.endpoint.release());
  if (settled) {
    worker_.reset();
    context_.reset();
  } else {
    // To destroy a worker while closed endpoints are still at work is an abort() inside UCX. Better
    // to lose the memory, on what can only be a failing path.
    static_cast<void>(worker_.release());
    static_cast<void>(context_.release());
  }
  return inOrder;
}

}  // namespace moeccl

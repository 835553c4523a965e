// Who receives what: the n-th send of a pair on a lane meets the n-th receive.
#include <algorithm>

#include "src/verify/job.h"

namespace moeccl::verification {
namespace {

struct Message {
  std::int32_t peer;
  std::int16_t lane;
  std::int32_t op;

  auto operator<=>(const Message&) const = default;
  bool sameStream(const Message& other) const { return peer == other.peer && lane == other.lane; }
};

class Matching {
 public:
  explicit Matching(Job& job) : job_(job), receives_(job.ranks()), next_(job.ranks(), 0) {}

  void run() {
    job_.partner.assign(static_cast<size_t>(job_.ops()), -1);
    for (int rank = 0; rank < job_.ranks(); ++rank) receives_[rank] = sorted(rank, OpKind::recv);
    // Senders in ascending order, so that each rank's receives, sorted by sender, are walked once.
    for (int from = 0; from < job_.ranks() && !job_.full(); ++from) {
      for (const Message& send : sorted(from, OpKind::send)) match(from, send);
    }
    for (int rank = 0; rank < job_.ranks() && !job_.full(); ++rank)
      for (; next_[rank] < receives_[rank].size(); ++next_[rank])
        reportUnmatched(rank, receives_[rank][next_[rank]]);
  }

 private:
  std::vector<Message> sorted(int rank, OpKind kind) {
    const std::vector<Op>& ops = job_.plans[rank].ops;
    std::vector<Message> messages;
    for (size_t i = 0; i < ops.size(); ++i)
      if (ops[i].kind == kind)
        messages.push_back({ops[i].peer, ops[i].lane, static_cast<std::int32_t>(i)});
    std::ranges::sort(messages);
    checkStreams(rank, messages);
    return messages;
  }

  // All messages of one kind between this rank and one other on one lane, in their order.
  void checkStreams(int rank, std::span<const Message> messages) {
    const std::vector<Op>& ops = job_.plans[rank].ops;
    int sequence = 0;
    for (size_t i = 1; i < messages.size(); ++i) {
      if (!messages[i].sameStream(messages[i - 1])) {
        sequence = 0;
        continue;
      }
      if (++sequence == job_.limits.messagesPerLane)
        job_.report(rank, messages[i].op,
                    "is one message more than the " + std::to_string(job_.limits.messagesPerLane) +
                        " that a lane can count between two ranks");
      const Op &before = ops[messages[i - 1].op], &after = ops[messages[i].op];
      if (after.step < before.step)
        job_.report(rank, messages[i].op,
                    "is in step " + std::to_string(after.step) + ", but op " +
                        std::to_string(messages[i - 1].op) +
                        ", the message before it, is in step " + std::to_string(before.step) +
                        ": they would match in another order");
    }
  }

  void match(int from, const Message& send) {
    const int to = send.peer;
    size_t& next = next_[to];
    const std::vector<Message>& receives = receives_[to];
    const auto isBefore = [&](const Message& recv) {
      return recv.peer < from || (recv.peer == from && recv.lane < send.lane);
    };
    while (next < receives.size() && isBefore(receives[next]))
      reportUnmatched(to, receives[next++]);
    if (next == receives.size() || receives[next].peer != from ||
        receives[next].lane != send.lane) {
      reportUnmatched(from, send);
      return;
    }
    const int recv = receives[next++].op;
    job_.partner[job_.firstOp[from] + send.op] = recv;
    job_.partner[job_.firstOp[to] + recv] = send.op;
    const Plan &sender = job_.plans[from], &receiver = job_.plans[to];
    const std::int64_t sent = blockCount(sender.src(sender.ops[send.op]));
    const std::int64_t taken = blockCount(receiver.dst(receiver.ops[recv]));
    if (sent != taken)
      job_.report(to, recv,
                  "takes " + std::to_string(taken) + " blocks, but " + job_.name(from, send.op) +
                      " carries " + std::to_string(sent));
  }

  void reportUnmatched(int rank, const Message& message) {
    const bool isSend = job_.plans[rank].ops[message.op].kind == OpKind::send;
    job_.report(rank, message.op,
                "meets no " + std::string(isSend ? "receive" : "send") + " of rank " +
                    std::to_string(message.peer) + " on lane " + std::to_string(message.lane));
  }

  Job& job_;
  std::vector<std::vector<Message>> receives_;  // by rank; sorted by sender
  std::vector<size_t> next_;
};

}  // namespace

void checkMatching(Job& job) { Matching(job).run(); }

}  // namespace moeccl::verification

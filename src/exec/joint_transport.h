// Two transports as one: shared memory by UCX for the ranks of a node, TCP for all others.
#pragma once

#include <memory>
#include <vector>

#include "src/exec/tcp_transport.h"

namespace moeccl {

class JointTransport final : public Transport {
 public:
  // `near` is a job of its own, of `members` in ascending order, this rank among them; null: this
  // rank is alone in its node.
  JointTransport(std::unique_ptr<PollableTransport> near, std::vector<int> members,
                 std::unique_ptr<TcpTransport> far);

  int rank() const override { return far_->rank(); }
  int ranks() const override { return far_->ranks(); }
  std::string name() const override;
  Address address() override;
  void connect(std::span<const Address> addresses) override;
  void send(int peer, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) override;
  void recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) override;
  void cancel(Transfer* transfer) override;
  bool unexpected(Tag value, Tag mask, Tag* found) override;
  bool progress() override;
  void wait(int milliseconds) override;
  void wake() override { far_->wake(); }
  void lose(int peer, const std::string& why) override;
  void leave(int peer, const std::string& why) override;
  bool close(bool abrupt, int milliseconds) override;
  std::string lastError() const override;

 private:
  static constexpr int kFar = -1;
  // The peer's number in the node's job, or kFar.
  int nearOf(int peer) const { return nearOf_[static_cast<std::size_t>(peer)]; }

  std::unique_ptr<PollableTransport> near_;
  std::unique_ptr<TcpTransport> far_;
  std::vector<int> members_;
  std::vector<int> nearOf_;  // by rank
  unsigned rounds_ = 0, postponed_ = 0;
  bool connected_ = false, closed_ = false;
};

}  // namespace moeccl

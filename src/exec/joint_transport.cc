// Gives each transfer to the transport of its peer, progresses TCP first, and sleeps on the
// descriptors of both.
#include "src/exec/joint_transport.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "src/base/text.h"
#include "src/bootstrap/clock.h"
#include "src/exec/ucx.h"

namespace moeccl {
namespace {

// Copies in the node would keep the processor from feeding the wire, so they wait while there is
// something to do for other nodes, but not for more calls of progress() than this.
constexpr unsigned kPostponed = 16;
// A part without transfers in flight is progressed once in so many calls: it has connections to
// take.
constexpr unsigned kIdleRounds = 16;
constexpr std::size_t kMostDescriptors = 8;
constexpr int kLongestSleep = 5;

struct JointHeader {
  char magic[8] = {'m', 'o', 'e', 'c', 'c', 'l', 'J', '1'};
  std::uint64_t far = 0;  // bytes of TCP's address; the rest is that in the node
};

}  // namespace

JointTransport::JointTransport(std::unique_ptr<PollableTransport> near, std::vector<int> members,
                               std::unique_ptr<TcpTransport> far)
    : near_(std::move(near)),
      far_(std::move(far)),
      members_(std::move(members)),
      nearOf_(static_cast<std::size_t>(far_->ranks()), kFar) {
  for (std::size_t i = 0; near_ && i < members_.size(); ++i)
    nearOf_[static_cast<std::size_t>(members_[i])] = static_cast<int>(i);
}

std::string JointTransport::name() const {
  return near_ ? near_->name() + " in the node, TCP between nodes" : far_->name();
}

Transport::Address JointTransport::address() {
  const Address far = far_->address(), near = near_ ? near_->address() : Address();
  JointHeader header;
  header.far = far.size();
  Address all(sizeof header + far.size() + near.size());
  std::memcpy(all.data(), &header, sizeof header);
  const auto rest = all.begin() + sizeof header;
  std::ranges::copy(near, std::ranges::copy(far, rest).out);
  return all;
}

void JointTransport::connect(std::span<const Address> addresses) {
  std::vector<Address> far, near;
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const Address& bytes = addresses[rank];
    const JointHeader expected;
    JointHeader header;
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    if (bytes.size() < sizeof header || header.far > bytes.size() - sizeof header ||
        std::memcmp(header.magic, expected.magic, sizeof expected.magic) != 0)
      throw std::runtime_error(
          stringf("rank %d: the address of rank %zu is not a joint address", this->rank(), rank));
    const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(sizeof header + header.far);
    far.emplace_back(bytes.begin() + sizeof header, middle);
    if (rank < nearOf_.size() && nearOf_[rank] != kFar) near.emplace_back(middle, bytes.end());
  }
  far_->connect(far);
  if (near_) near_->connect(near);
  connected_ = true;
}

void JointTransport::send(int peer, Tag tag, const void* data, std::size_t bytes,
                          Transfer* transfer) {
  if (const int near = nearOf(peer); near != kFar)
    near_->send(near, tag, data, bytes, transfer);
  else
    far_->send(peer, tag, data, bytes, transfer);
}

void JointTransport::recv(int peer, Tag tag, void* data, std::size_t bytes, Transfer* transfer) {
  if (const int near = nearOf(peer); near != kFar)
    near_->recv(near, tag, data, bytes, transfer);
  else
    far_->recv(peer, tag, data, bytes, transfer);
}

void JointTransport::cancel(Transfer* transfer) {
  if (near_ && transfer->flight.carrier == near_.get())
    near_->cancel(transfer);
  else
    far_->cancel(transfer);
}

bool JointTransport::progress() {
  const bool look = ++rounds_ % kIdleRounds == 0;
  const bool moved = (look || far_->isBusy()) && far_->progress();
  if (!near_ || (moved && ++postponed_ < kPostponed)) return moved;
  postponed_ = 0;
  return ((look || near_->isBusy()) && near_->progress()) || moved;
}

void JointTransport::wait(int milliseconds) {
  if (!near_) return far_->wait(milliseconds);
  if (!far_->prepareToSleep(&milliseconds) || !near_->prepareToSleep(&milliseconds)) return;
  std::array<pollfd, kMostDescriptors> polled;
  nfds_t count = 0;
  for (const auto descriptors : {far_->sleepOn(), near_->sleepOn()})
    for (int fd : descriptors) polled[count++] = {fd, POLLIN, 0};
  if (poll(polled.data(), count, milliseconds) <= 0) return;
  const std::span<const pollfd> all(polled.data(), count);
  const std::size_t fars = far_->sleepOn().size();
  far_->awake(all.first(fars));
  near_->awake(all.subspan(fars));
}

void JointTransport::lose(int peer, const std::string& why) {
  if (const int near = nearOf(peer); near != kFar) near_->lose(near, why);
  far_->lose(peer, why);
}

void JointTransport::leave(int peer, const std::string& why) {
  if (const int near = nearOf(peer); near != kFar) near_->leave(near, why);
  far_->leave(peer, why);
}

bool JointTransport::unexpected(Tag value, Tag mask, Tag* found) {
  return (near_ && near_->unexpected(value, mask, found)) || far_->unexpected(value, mask, found);
}

// Ranks of other nodes may wait for what is left of this one, and ranks of this node for what is
// left of those. So both sides are kept going until all have come here.
bool JointTransport::close(bool abrupt, int milliseconds) {
  if (closed_) return true;
  closed_ = true;
  const TimePoint deadline = afterMs(milliseconds);
  if (near_ && !abrupt && connected_) {
    const auto haveMet = [this] {
      const bool nearDrained = near_->drained(), farDrained = far_->drained();
      return nearDrained && farDrained && far_->hasMet();
    };
    while (!haveMet() && !isPast(deadline)) {
      whileClosing();
      if (!progress()) wait(std::min(kLongestSleep, msUntil(deadline)));
    }
  }
  const auto left = [&] { return std::max(0, msUntil(deadline)); };
  if (near_) near_->whileClosing = whileClosing;
  far_->whileClosing = whileClosing;
  const bool inOrder = !near_ || near_->close(abrupt, left());
  return far_->close(abrupt, left()) && inOrder;
}

std::string JointTransport::lastError() const {
  const bool near = near_ && near_->lastErrorTime() > far_->lastErrorTime();
  return near ? near_->lastError() : far_->lastError();
}

std::unique_ptr<Transport> makeJointTransport(int rank, int ranks, const std::vector<int>& members,
                                              const TcpOptions& options) {
  auto far = std::make_unique<TcpTransport>(rank, ranks, options);
  std::unique_ptr<PollableTransport> near;
  if (members.size() > 1) {
    const auto mine = std::ranges::find(members, rank) - members.begin();
    near = makeUcxTransport(
        static_cast<int>(mine), static_cast<int>(members.size()),
        {.reach = UcxReach::sharedMemory, .sources = members, .memory = options.memory});
  }
  return std::make_unique<JointTransport>(std::move(near), members, std::move(far));
}

}  // namespace moeccl
